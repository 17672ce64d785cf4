"""Conversations of a few turns: edits that go on from each other, undoing, new code, small
talk, and requests outside the training in between.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from akunu_py.edits.shown import code_in
from models.training import phrases, short_edits, wordings
from models.training.edits import Edit, fenced
from models.training.edits.base import closed
from models.training.examples import Turns
from models.training.functions import Function, is_function
from models.training.invented import Inventor
from models.training.phrases import CHOICES, REQUESTS, requests_of, unmarked
from models.training.refusals import WHICH_CODE, Requests, answer, is_small_talk
from models.training.wordings import as_follow_up, in_few_words

WHAT_CHANGE: str = CHOICES["what_change"]
"""The answer to code without a request."""
_LENGTHS, _PLAIN_LENGTHS = (2, 2, 3, 3, 4, 5), (2, 2, 3, 3, 4, 5, 6)
"""How many requests a conversation has, and one of plain-spoken people."""
_MAX_REAL, _MAX_REAL_PLAIN = 500, 800
"""Characters of a real function that a conversation is about, and of plain-spoken people's."""
_REAL = 0.25  # of edits of new code are of real functions
_OUTSIDE, _SMALL_TALK, _FOLLOW_UP, _UNDO, _AGAIN = 0.15, 0.21, 0.65, 0.76, 0.8
"""One number from 0 to 1 decides what the next turn is. Below the first of these it is outside the
training, below the second it is small talk, then an edit of the code there is, its undoing, and a
wish to see it again. Above them all it is an edit of new code. Where there is nothing to undo, the
code is shown again."""
_ASKED = 0.08  # of turns are questions, where there are any
_WITHOUT_CODE = 0.15  # of requests outside the training ask for an edit where there is no code
_ATTEMPTS = 8
# Plain-spoken people only:
_PLAIN = 0.4  # of changes of earlier code are asked for in the fewest words
_RENAMED, _RENAMING, _ONCE_MORE = "rename_variable", 0.25, 0.9
"""A kind of edit; how many of the requests in few words are for it, whatever came before; and how
often another one follows it."""
_ADDING = 0.4  # begin with an edit that adds lines; the next one must be made to the answer
_FORGETTING, _BRINGING = 0.2, 0.6  # forget the code if they have shown none; send it then by itself
_SHOW = 0.1  # show new code before they say what to change
_NO_FUNCTION = 0.25  # of these codes are a class, statements, or imports
_TALKING = 0.25  # say something else when they are asked what to change
_AT_ONCE = 0.5  # say it in their next message
_CORRECTING = 0.15  # correct a name or a value of an edit in their next message
_NEW = 0.4  # of corrected edits are of new code
_NAMED = 0.25  # name the change that is undone, where there are words for it
_TWO = 0.12  # undo the last two of several changes
_ALL, _ALL_OF_MANY = 0.12, 0.3  # go back before all changes: after one, and after several
_WHOLE_REQUEST = 0.6  # ask for the impossible as people do who show code with it
# After any conversation:
_REMARKS = (1, 1, 1, 2, 3)
_ASKED_AGAIN, _UNABLE, _TALK = 0.2, 0.4, 0.55
"""As above: the first two only if there is code; the rest is outside the training."""
_PLAIN_KINDS: Mapping[str, float] = {
    kind: 2.0 if kind in CHOICES["few_words"] else 1.0
    for kind in short_edits.KINDS
    if kind not in CHOICES["long_requests"]
}


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
    brief = [one for one in CHOICES["unable"] if one not in apart]
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
        longest = _MAX_REAL_PLAIN if plain_spoken else _MAX_REAL
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
            if not versions and self._sometimes(_FORGETTING):
                turns += self.forget(versions)
                continue
            if not shown and self._sometimes(_CORRECTING):
                turns += self.correct(versions)
                continue
            before = turns[-1][1] if turns else ""
            shown = shown or before == WHAT_CHANGE
            talks = shown and self._rng.random() < _TALKING
            # Code that comes after it was asked for would be the code of the request.
            if not shown and before != WHICH_CODE and self._sometimes(_SHOW):
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

    def with_remarks(self, conversations: Sequence[Turns], count: int) -> Iterator[Turns]:
        """`count` of the conversations, which go on with remarks that ask for no edit."""
        for _ in range(count):
            turns = list(self._rng.choice(conversations))
            code = code_in(turns[-1][1]).rstrip() if "```" in turns[-1][1] else ""
            for _ in range(self._rng.choice(_REMARKS)):
                said = self._remark(code)
                turns += [("user", said[0]), ("assistant", said[1])]
            yield turns

    def _remark(self, code: str) -> tuple[str, str]:
        chance = self._rng.random()
        if code and chance < _ASKED_AGAIN:
            return self._inventor.asking("again"), fenced(code)
        if code and chance < _UNABLE:
            return self.unable()
        while True:
            said = self._requests.small_talk() if chance < _TALK else self._requests.outside()
            if not self._requests.shown:
                return said

    def _sometimes(self, share: float) -> bool:
        """Whether people who are plain-spoken do something now."""
        return self._plain_spoken and self._rng.random() < share

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
            return self._inventor.asking("again"), fenced(versions[-1].text)
        return self.begin(versions)

    def _talk(self, versions: list[Function]) -> tuple[str, str]:
        """Small talk, or what cannot be done, also of the code."""
        chance = self._rng.random()
        if chance < 0.35:
            return self._requests.small_talk()
        return self.unable() if chance < 0.65 else self.outside(versions)

    def _question(self) -> tuple[str, str] | None:
        if not self._questions or self._rng.random() >= _ASKED:
            return None
        (_, question), (_, told) = self._rng.choice(self._questions)
        return question, told

    def _of_the_code(self, versions: list[Function]) -> tuple[str, str] | None:
        """One of the asides of plain-spoken people, if there is code."""
        if not self._plain_spoken or not versions:
            return None
        shares = dict(CHOICES["asides"])
        shares["undo"] *= min(2, len(versions) - 1)
        aside = phrases.drawn({"": 1.0 - sum(shares.values()), **shares}, self._rng)
        if aside == "unable":
            return self.unable()
        makers = {"undo": self.undo, "begin": self.begin, "outside": self.outside}
        return makers[aside](versions) if aside else None

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
            words = closed(wordings.small(words) if is_plain else words)
        request = as_follow_up(words, self._rng)
        return request, answer("judge")

    def forget(self, versions: list[Function]) -> Turns:
        """A request without its code; the code often comes next, and gets what was asked for."""
        request, kind, edit = short_edits.without_code(self._inventor)
        turns = [("user", request), ("assistant", WHICH_CODE)]
        if self._rng.random() < _BRINGING:
            versions[:] = _versions(kind, edit)
            code = self._rng.choice(CHOICES["brought"]).replace("{}", edit.before)
            turns += [("user", code), ("assistant", fenced(edit.after))]
        return turns

    def begin(self, versions: list[Function]) -> tuple[str, str]:
        """An edit of new code."""
        given = self._rng.choice(CHOICES["adding_kinds"]) if self._sometimes(_ADDING) else None
        kind, edit = short_edits.drawn(self._inventor, given)
        if self._functions and self._rng.random() < _REAL:
            real = short_edits.make(kind, self._rng.choice(self._functions), self._inventor)
            edit = real or edit
        versions[:] = _versions(kind, edit)
        (_, request), (_, edited) = short_edits.conversation(kind, edit, self._rng)
        return request, edited

    def correct(self, versions: list[Function]) -> Turns:
        """An edit with a wrong name or value, of new code or of the code there is, and the
        correction of it; no turns if no such edit was found."""
        kind = phrases.drawn(CHOICES["corrected"], self._rng)
        is_new = not versions or not is_function(versions[-1].text) or self._rng.random() < _NEW
        if is_new:
            kind, edit = short_edits.drawn(self._inventor, kind)
        else:
            made = short_edits.make(kind, versions[-1], self._inventor)
            if made is None:
                return []
            edit = made
        found = short_edits.mistaken(edit, self._inventor)
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
        asked = self._inventor.asking("correct: rename" if of_names else "correct")
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
            header = f"class {wordings.large(names[0])}:\n"
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
            return self._shown(versions[0].text)
        kind, edit = short_edits.drawn(self._inventor)
        versions[:] = _versions(kind, edit)
        turns = self._shown(edit.before)
        if kind in CHOICES["long_requests"] or self._rng.random() >= _AT_ONCE:
            del versions[1:]
            return turns
        asked = wordings.ended(self._in_other_words(kind, edit), self._rng)
        return [*turns, ("user", asked), ("assistant", fenced(edit.after))]

    def _shown(self, code: str) -> Turns:
        shown = self._rng.choice(CHOICES["shown"]).replace("{}", code)
        return [("user", shown), ("assistant", WHAT_CHANGE)]

    def _in_other_words(self, kind: str, edit: Edit) -> str:
        """A request for an edit of code that is there."""
        words = closed(wordings.instruction(edit, kind, self._rng))
        return wordings.spoken(words, self._rng, edit)

    def follow_up(self, versions: list[Function]) -> tuple[str, str] | None:
        """An edit of the code that was shown last, which is not pasted again."""
        current, rng = versions[-1], self._rng
        if not is_function(current.text):
            return None
        once_more = current.origin == _RENAMED and rng.random() < _ONCE_MORE
        plain = self._plain_spoken and (once_more or rng.random() < _PLAIN)
        kinds = _PLAIN_KINDS if plain else short_edits.KINDS
        drawn = rng.choices(list(kinds), list(kinds.values()), k=_ATTEMPTS)
        if plain and (once_more or rng.random() < _RENAMING):
            drawn.insert(0, _RENAMED)
        for kind in drawn:
            edit = short_edits.make(kind, current, self._inventor)
            if edit is None or kind == "repeat_code" or edit.before != current.text:
                continue
            both: tuple[Edit, str] | None = None
            origin = kind
            if self._sometimes(short_edits.TOGETHER):
                both = short_edits.two_at_once(
                    kind, edit, self._inventor, is_method=current.is_method
                )
            if both:
                (edit, words), origin = both, ""
                asked = as_follow_up(wordings.spoken(words, rng, edit), rng, edit)
            elif plain:
                again = kind == current.origin == _RENAMED
                asked = in_few_words(kind, edit, rng, again=again)
            else:
                asked = as_follow_up(self._in_other_words(kind, edit), rng, edit)
            versions.append(replace(current, text=edit.after, origin=origin))
            return asked, fenced(edit.after)
        return None

    def undo(self, versions: list[Function]) -> tuple[str, str]:
        """The code before the last change, which some people name, or before two, or all."""
        if self._rng.random() < (_ALL if len(versions) == 2 else _ALL_OF_MANY):
            del versions[1:]
            return self._inventor.asking("original"), fenced(versions[0].text)
        if len(versions) > 2 and self._sometimes(_TWO):
            del versions[-2:]
            return self._inventor.asking("undo two"), fenced(versions[-1].text)
        named = REQUESTS.get(f"undo: {versions.pop().origin}", [])
        if self._inventor.held_out or not named or self._rng.random() >= _NAMED:
            return self._inventor.asking("undo"), fenced(versions[-1].text)
        return as_follow_up(self._rng.choice(named), self._rng), fenced(versions[-1].text)
