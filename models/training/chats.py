"""Conversations of a few turns: edits that go on from each other, undoing, new code, small
talk, and requests outside the training in between.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from models.training import combined, short_edits, wordings
from models.training.edits import Edit, fenced
from models.training.edits.base import closed
from models.training.examples import Turns
from models.training.few_words import FEW_WORDS, as_follow_up, in_few_words
from models.training.functions import Function, is_function
from models.training.invented import Inventor
from models.training.phrases import REQUESTS, requests_of, unmarked
from models.training.refusals import WHICH_CODE, Requests, answer, is_small_talk

MAX_REAL, MAX_REAL_PLAIN = 500, 800
"""Characters of a real function that a conversation is about, and of plain-spoken people's."""
_ATTEMPTS = 8
_ASKED = 0.08
"""How often a turn is a question, where there are any."""
_PLAIN = 0.4
"""How often a change of earlier code is asked for in the fewest words. People use the same words
before there is any code, so the model has to learn to look for it."""
_RENAMED, _RENAMING, _ONCE_MORE = "rename_variable", 0.25, 0.9
"""A kind of edit; how many of the requests in few words are for it, whatever came before; and how
often another one follows it."""
_LONG_REQUESTS = ("repeat_code", "apply_diff")
"""Kinds that cannot be asked for in few words."""
_PLAIN_KINDS: Mapping[str, float] = {
    kind: 2.0 if kind in FEW_WORDS else 1.0
    for kind in short_edits.KINDS
    if kind not in _LONG_REQUESTS
}
_OUTSIDE, _SMALL_TALK, _FOLLOW_UP, _UNDO, _AGAIN = 0.15, 0.21, 0.65, 0.76, 0.8
"""One number from 0 to 1 decides what the next turn is. Below the first of these it is outside the
training, below the second it is small talk, then an edit of the code there is, its undoing, and a
wish to see it again. Above them all it is an edit of new code. Where there is nothing to undo, the
code is shown again."""
_ADDING_KINDS = ("add_docstring", short_edits.DESCRIBE, "wrap_in_try", "guard", "insert_line")
_ADDING = 0.4
"""How often plain-spoken people begin with an edit that adds lines. What follows must be done to
the answer, not to the shorter code that was sent."""
_WITHOUT_CODE = 0.15
"""The share of requests outside the training that ask for an edit where there is no code."""
_FORGETTING, _BRINGING = 0.2, 0.6
"""How often plain-spoken people forget the code when they have shown none, and how often they then
send it by itself."""
_ASIDES: Mapping[str, float] = {
    "undo": 0.15,
    "unable": 0.1,
    "begin": 0.1,
    "outside": 0.22,
}
"""How often plain-spoken people also undo a change (for each of up to two changes), ask for what
is impossible, bring new code with its request when there is some already, and make a request that
has nothing to do with the code."""
_SHOW = 0.1
"""How often they show new code before they say what to change."""
_NO_FUNCTION = 0.25
"""How many of these codes are a class, statements, or imports."""
_CORRECTING = 0.15
"""How often they correct a name or a value of an edit in their next message."""
_CORRECTED: Mapping[str, float] = {
    "rename_variable": 4.0,
    "rename_function": 2.0,
    "rename_attribute": 1.0,
    "replace_expression": 1.0,
    "add_default": 2.0,
    "change_default": 1.0,
    "add_hint": 3.0,
    "add_parameter": 1.0,
    "wrap_in_try": 2.0,
    "decorate": 0.5,
}
"""Which kinds of edits they correct, and how often each."""
_NAMED = 0.25
"""How often the change that is undone is named, where there are words for it."""
_TWO = 0.12
"""How often the last two of several changes are undone."""
_ALL, _ALL_OF_MANY = 0.12, 0.3
"""How often the code from before all changes is asked for: after one change, and after several."""
_LENGTHS, _PLAIN_LENGTHS = (2, 2, 3, 3, 4, 5), (2, 2, 3, 3, 4, 5, 6)
"""How many requests a conversation has, and one of plain-spoken people."""
_TALKING = 0.25
"""How often somebody who was asked what to change says something else first."""
_AT_ONCE = 0.5
"""How often people who show code say in their next message what to change."""
_UNABLE_WORDS = (
    *("add type hints", "type hints please", "add error handling", "handle errors", "fix it"),
    *("make it faster", "improve it", "add tests", "write a test for it", "make it shorter"),
    *("add comments", "make it a class", "make it a one-liner", "explain it", "run it"),
    *("use recursion", "translate it to javascript", "use a list comprehension", "sort it"),
    *("add a default", "add a parameter", "add a decorator", "rename it", "rename a variable"),
    *("insert a line", "delete a line", "change the type", "add a check", "call it with 5"),
    *("rename it to something sensible", "use better names", "print the result", "redo"),
)
"""What people also ask of code that is there, and what cannot be done."""
_WHOLE_REQUEST = 0.6
"""How often that is in the words of people who show code with it."""
WHAT_CHANGE = "What shall I change in it? For example, rename a variable, or make it async."
"""The answer to code without a request."""
_SHOWN = (
    *("{}", "{}", "{}", "{}", "```python\n{}\n```", "```\n{}\n```"),
    *("Here is my function:\n{}", "here is my code: {}", "I have this: {}", "My code:\n{}"),
)
_BROUGHT = (*_SHOWN, "this: {}", "this one:\n{}", "sorry, here: {}", "oops: {}", "in this: {}")
"""How code is sent after it was asked for."""


def _versions(kind: str, edit: Edit) -> list[Function]:
    """The code before and after an edit of the kind, or once where it stayed as it is."""
    both = [Function(edit.before, False, ""), Function(edit.after, False, kind)]
    return both if edit.before != edit.after else both[:1]


@cache
def _unable_requests(*, held_out: bool) -> tuple[list[str], list[str]]:
    """What cannot be done with code: in few words, and in those of people who show code with it.

    Neither list has a request of the other part, held out or not.
    """
    mine, others = (
        [one.removesuffix("{code}").rstrip(" :-") for one in requests_of("judge", held_out=part)]
        for part in (held_out, not held_out)
    )
    apart = set(map(unmarked, others))
    brief = [one for one in _UNABLE_WORDS if one not in apart]
    whole = [one for one in mine if "{" not in one and unmarked(one) not in apart]
    return brief, [one for one in whole if not is_small_talk(one)]


class Chats:
    """Invents conversations; a quarter of the code that they begin with is of real functions.

    Where there are `questions`, conversations of one, some turns are drawn from them. If
    they are `plain_spoken`, changes are undone more often and asked for in fewer words, what cannot
    be done is asked of code that is there, and code is shown before anything is asked, or after it.
    Trained on are such people only; the held-out conversations are of others.
    """

    def __init__(
        self,
        inventor: Inventor,
        requests: Requests,
        functions: Sequence[Function],
        questions: Sequence[Turns] = (),
        *,
        plain_spoken: bool = False,
    ) -> None:
        self._inventor, self._requests, self._rng = inventor, requests, inventor.rng
        self._questions, self._plain_spoken = questions, plain_spoken
        longest = MAX_REAL_PLAIN if plain_spoken else MAX_REAL
        self._functions = [f for f in functions if len(f.text) <= longest]

    def conversations(self, count: int) -> Iterator[Turns]:
        """`count` conversations."""
        lengths = _PLAIN_LENGTHS if self._plain_spoken else _LENGTHS
        for _ in range(count):
            yield self.conversation(self._rng.choice(lengths))

    def conversation(self, count: int) -> Turns:
        """A conversation of `count` requests and their answers, or of one more."""
        turns: Turns = []
        versions: list[Function] = []
        shown = False
        while len(turns) < 2 * count:
            if not versions and self._plain_spoken and self._rng.random() < _FORGETTING:
                turns += self.forget(versions)
                continue
            if self._plain_spoken and not shown and self._rng.random() < _CORRECTING:
                turns += self.correct(versions)
                continue
            before = turns[-1][1] if turns else ""
            shown = shown or before == WHAT_CHANGE
            talks = shown and self._rng.random() < _TALKING
            if not shown and self._shows(before):
                turns += self.show(versions)
                continue
            said = (
                (self._talk(versions) if talks else None)
                or (self.follow_up(versions) if shown else None)
                or self._question()
                or self._of_the_code(versions)
                or self._turn(versions)
            )
            shown = talks
            turns += [("user", said[0]), ("assistant", said[1])]
        return turns

    def _shows(self, before: str) -> bool:
        """Whether plain-spoken people show other code now.

        They do not after an answer that asks for code (`before`), because that would be the code of
        the request."""
        return self._plain_spoken and before != WHICH_CODE and self._rng.random() < _SHOW

    def _turn(self, versions: list[Function]) -> tuple[str, str]:
        """The next request and its answer; `versions` of the code are brought up to date."""
        chance = self._rng.random()
        if chance < _OUTSIDE:
            return self.outside(versions)
        if chance < _SMALL_TALK:
            return self._requests.small_talk()
        if versions and chance < _FOLLOW_UP:
            return self.follow_up(versions) or self.begin(versions)
        if len(versions) > 1 and chance < _UNDO:
            return self.undo(versions)
        if versions and chance < _AGAIN:
            return self._asking("again"), fenced(versions[-1].text)
        return self.begin(versions)

    def _talk(self, versions: list[Function]) -> tuple[str, str]:
        """Small talk, or what cannot be done, also of the code."""
        chance = self._rng.random()
        if chance < 0.35:
            return self._requests.small_talk()
        return self.unable() if chance < 0.65 else self.outside(versions)

    def _question(self) -> tuple[str, str] | None:
        """Now and then a question and its answer, where there are any."""
        if not self._questions or self._rng.random() >= _ASKED:
            return None
        (_, question), (_, told) = self._rng.choice(self._questions)
        return question, told

    def _of_the_code(self, versions: list[Function]) -> tuple[str, str] | None:
        """Now and then, the last change is undone, the impossible is asked of the code, other code
        is edited, or what is asked has nothing to do with code."""
        if not self._plain_spoken or not versions:
            return None
        shares = {**_ASIDES, "undo": _ASIDES["undo"] * min(2, len(versions) - 1)}
        (aside,) = self._rng.choices(("", *shares), (1.0 - sum(shares.values()), *shares.values()))
        makers = {"undo": self.undo, "begin": self.begin, "outside": self.outside}
        if aside in makers:
            return makers[aside](versions)
        return self.unable() if aside == "unable" else None

    def _asking(self, kind: str) -> str:
        """A request of a kind that needs no other words."""
        return self._rng.choice(requests_of(kind, held_out=self._inventor.held_out))

    def outside(self, versions: list[Function]) -> tuple[str, str]:
        """What cannot be done; without code, that may also be an edit. Code that is shown is the
        code there is from then on."""
        if not versions and not self._plain_spoken and self._rng.random() < _WITHOUT_CODE:
            return self._requests.turn("no code")
        said = self._requests.outside()
        if self._requests.shown:
            versions[:] = [Function(self._requests.shown, False, "")]
        return said

    def unable(self) -> tuple[str, str]:
        """What cannot be done with the code there is."""
        brief, whole = _unable_requests(held_out=self._inventor.held_out)
        words = self._rng.choice(brief)
        if self._rng.random() < _WHOLE_REQUEST:
            words = self._rng.choice(whole)
            is_plain = words.partition(" ")[0][1:].islower()  # and no `TypeError`
            words = closed(words[:1].lower() + words[1:] if is_plain else words)
        request = as_follow_up(words, self._rng)
        return request, answer("judge", request)

    def forget(self, versions: list[Function]) -> Turns:
        """A request without its code; the code often comes next, and gets what was asked for."""
        request, kind, edit = short_edits.without_code(self._inventor)
        turns = [("user", request), ("assistant", WHICH_CODE)]
        if self._rng.random() < _BRINGING:
            versions[:] = _versions(kind, edit)
            code = self._rng.choice(_BROUGHT).replace("{}", edit.before)
            turns += [("user", code), ("assistant", fenced(edit.after))]
        return turns

    def begin(self, versions: list[Function]) -> tuple[str, str]:
        """An edit of new code."""
        adds = self._plain_spoken and self._rng.random() < _ADDING
        given = self._rng.choice(_ADDING_KINDS) if adds else None
        kind, edit = short_edits.drawn(self._inventor, given)
        if self._functions and self._rng.random() < 0.25:
            real = short_edits.make(kind, self._rng.choice(self._functions), self._inventor)
            edit = real or edit
        versions[:] = _versions(kind, edit)
        (_, request), (_, edited) = short_edits.conversation(kind, edit, self._rng)
        return request, edited

    def correct(self, versions: list[Function]) -> Turns:
        """An edit with a wrong name or value, of new code or of the code there is, and the
        correction of it; no turns if no such edit was found."""
        (kind,) = self._rng.choices(list(_CORRECTED), list(_CORRECTED.values()))
        is_new = not versions or not is_function(versions[-1].text) or self._rng.random() < 0.4
        if is_new:
            kind, edit = short_edits.drawn(self._inventor, kind)
        else:
            made = short_edits.make(kind, versions[-1], self._inventor)
            if made is None:
                return []
            edit = made
        found = combined.mistaken(edit, self._inventor)
        if found is None:
            return []
        mistake, wrong, right = found
        if is_new:
            versions[:] = _versions(kind, mistake)
            first = short_edits.conversation(kind, mistake, self._rng)
        else:
            versions.append(Function(mistake.after, versions[-1].is_method, kind))
            words = as_follow_up(self._in_other_words(kind, mistake), self._rng, mistake)
            first = [("user", words), ("assistant", fenced(mistake.after))]
        of_names = kind.startswith("rename") and self._rng.random() < 0.5
        asked = self._asking("correct: rename" if of_names else "correct")
        asked = asked.format(new=right, old=wrong)
        versions.append(Function(edit.after, versions[-1].is_method, ""))
        return [*first, ("user", asked), ("assistant", fenced(edit.after))]

    def _no_function(self) -> str:
        """A class of one to three methods, assignments, or imports, perhaps before a function."""
        inventor, rng = self._inventor, self._rng
        names = [inventor.name() for _ in range(3)]
        chance = rng.random()
        if chance < 0.35:
            values = (inventor.expression(names, 1) for _ in range(rng.randint(1, 4)))
            return "\n".join(f"{inventor.name()} = {value}" for value in values)
        if chance < 0.7:
            methods = [inventor.function().text for _ in range(rng.randint(1, 3))]
            header = f"class {names[0][:1].upper()}{names[0][1:]}:\n"
            return header + textwrap.indent("\n\n".join(methods), "    ")
        lines = [
            rng.choice((f"import {name}", f"from {name} import {inventor.name()}"))
            for name in names[: rng.randint(1, 3)]
        ]
        return "\n".join(lines) + rng.choice(("", "", f"\n\n{inventor.function().text}"))

    def show(self, versions: list[Function]) -> Turns:
        """New code without a request, any that could be edited; the answer asks for one, and often
        it comes next."""
        if self._rng.random() < _NO_FUNCTION:
            versions[:] = [Function(self._no_function(), False, "")]
            shown = self._rng.choice(_SHOWN).replace("{}", versions[0].text)
            return [("user", shown), ("assistant", WHAT_CHANGE)]
        kind, edit = short_edits.drawn(self._inventor)
        versions[:] = _versions(kind, edit)
        shown = self._rng.choice(_SHOWN).replace("{}", edit.before)
        turns = [("user", shown), ("assistant", WHAT_CHANGE)]
        if kind in _LONG_REQUESTS or self._rng.random() >= _AT_ONCE:
            del versions[1:]
            return turns
        asked = wordings.ended(self._in_other_words(kind, edit), self._rng)
        return [*turns, ("user", asked), ("assistant", fenced(edit.after))]

    def _in_other_words(self, kind: str, edit: Edit) -> str:
        """A request for an edit of code that is there."""
        words = closed(wordings.instruction(edit, kind, self._rng))
        return wordings.spoken(words, self._rng, edit)

    def follow_up(self, versions: list[Function]) -> tuple[str, str] | None:
        """An edit of the code that was shown last, which is not pasted again."""
        current = versions[-1]
        if not is_function(current.text):
            return None
        once_more = current.origin == _RENAMED and self._rng.random() < _ONCE_MORE
        plain = self._plain_spoken and (once_more or self._rng.random() < _PLAIN)
        kinds = _PLAIN_KINDS if plain else short_edits.KINDS
        drawn = self._rng.choices(list(kinds), list(kinds.values()), k=_ATTEMPTS)
        if plain and (once_more or self._rng.random() < _RENAMING):
            drawn.insert(0, _RENAMED)
        for kind in drawn:
            edit = short_edits.make(kind, current, self._inventor)
            if edit is None or kind == "repeat_code" or edit.before != current.text:
                continue
            if self._plain_spoken and self._rng.random() < combined.TOGETHER:
                of_method = current.is_method
                both = combined.two_at_once(kind, edit, self._inventor, is_method=of_method)
                if both:
                    edit, words = both
                    versions.append(replace(current, text=edit.after, origin=""))
                    asked = wordings.spoken(words, self._rng, edit)
                    return as_follow_up(asked, self._rng, edit), fenced(edit.after)
            again = kind == current.origin == _RENAMED
            versions.append(replace(current, text=edit.after, origin=kind))
            if plain:
                return in_few_words(kind, edit, self._rng, again=again), fenced(edit.after)
            asked = as_follow_up(self._in_other_words(kind, edit), self._rng, edit)
            return asked, fenced(edit.after)
        return None

    def undo(self, versions: list[Function]) -> tuple[str, str]:
        """The code before the last change, which some people name, or before two, or all."""
        if self._rng.random() < (_ALL if len(versions) == 2 else _ALL_OF_MANY):
            del versions[1:]
            return self._asking("original"), fenced(versions[0].text)
        if self._plain_spoken and len(versions) > 2 and self._rng.random() < _TWO:
            del versions[-2:]
            return self._asking("undo two"), fenced(versions[-1].text)
        named = REQUESTS.get(f"undo: {versions.pop().origin}", [])
        if self._inventor.held_out or not named or self._rng.random() >= _NAMED:
            return self._asking("undo"), fenced(versions[-1].text)
        return as_follow_up(self._rng.choice(named), self._rng), fenced(versions[-1].text)
