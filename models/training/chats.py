"""Conversations of two to five turns: edits that go on from each other, undoing, new code, small
talk, and requests outside the training in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.training import short_edits, wordings
from models.training.edits import fenced
from models.training.functions import Function, is_function
from models.training.invented import Inventor
from models.training.phrases import REQUESTS
from models.training.refusals import Requests

Turns = list[tuple[str, str]]

MAX_REAL = 500
"""Characters of a real function that a conversation is about."""
_ATTEMPTS = 8
_ASKED = 0.08
"""How often a turn is a question, where there are any."""
_FOLLOW = (
    "now {}",
    "Now {}",
    "then {}",
    "and {}",
    "also {}",
    "next, {}",
    "ok, {}",
    "Great, now {}",
)


class Chats:
    """Invents conversations, one in four about a real function.

    Where there are `questions`, conversations of one, some turns are drawn from them. `undoing` is
    how often, besides, the last change is taken back where there is one.
    """

    def __init__(
        self,
        inventor: Inventor,
        requests: Requests,
        functions: Sequence[Function],
        questions: Sequence[Turns] = (),
        *,
        undoing: float = 0.0,
    ) -> None:
        self._inventor, self._requests, self._rng = inventor, requests, inventor.rng
        self._questions, self._undoing = questions, undoing
        self._functions = [f for f in functions if len(f.text) <= MAX_REAL]

    def conversations(self, count: int) -> Iterator[Turns]:
        """`count` conversations."""
        for _ in range(count):
            yield self.conversation(self._rng.choice((2, 2, 3, 3, 4, 5)))

    def conversation(self, count: int) -> Turns:
        """A conversation of `count` requests and their answers."""
        turns: Turns = []
        versions: list[Function] = []
        for _ in range(count):
            said = self._question() or self._taken_back(versions) or self._turn(versions)
            turns += [("user", said[0]), ("assistant", said[1])]
        return turns

    def _turn(self, versions: list[Function]) -> tuple[str, str]:
        """The next request and its answer; `versions` of the code are brought up to date."""
        chance = self._rng.random()
        if chance < 0.15:
            return self.outside(versions)
        if chance < 0.27:
            return self._requests.small_talk()
        if versions and chance < 0.65:
            return self.follow_up(versions) or self.begin(versions)
        if len(versions) > 1 and chance < 0.76:
            return self.undo(versions)
        if versions and chance < 0.8:
            return self._rng.choice(REQUESTS["again"]), fenced(versions[-1].text)
        return self.begin(versions)

    def _question(self) -> tuple[str, str] | None:
        """Now and then a question and its answer, where there are any."""
        if not self._questions or self._rng.random() >= _ASKED:
            return None
        (_, question), (_, answer) = self._rng.choice(self._questions)
        return question, answer

    def _taken_back(self, versions: list[Function]) -> tuple[str, str] | None:
        """Now and then the last change undone, where there is one and that is wanted."""
        if len(versions) < 2 or not self._undoing or self._rng.random() >= self._undoing:
            return None
        return self.undo(versions)

    def outside(self, versions: list[Function]) -> tuple[str, str]:
        """What cannot be done; without code, that may also be an edit."""
        if not versions and self._rng.random() < 0.15:
            return self._requests.turn("no code")
        return self._requests.outside()

    def begin(self, versions: list[Function]) -> tuple[str, str]:
        """An edit of new code."""
        kind, edit = short_edits.drawn(self._inventor)
        if self._functions and self._rng.random() < 0.25:
            real = short_edits.make(kind, self._rng.choice(self._functions), self._inventor)
            edit = real or edit
        versions[:] = [Function(text, False, "chat") for text in (edit.before, edit.after)]
        (_, request), (_, answer) = short_edits.conversation(kind, edit, self._rng)
        return request, answer

    def follow_up(self, versions: list[Function]) -> tuple[str, str] | None:
        """An edit of the code of the last answer that showed any, which is not pasted again."""
        current = versions[-1]
        if not is_function(current.text):
            return None
        kinds, weights = list(short_edits.KINDS), list(short_edits.KINDS.values())
        for kind in self._rng.choices(kinds, weights, k=_ATTEMPTS):
            edit = short_edits.make(kind, current, self._inventor)
            if edit is None or kind == "repeat_code":
                continue
            versions.append(replace(current, text=edit.after))
            words = wordings.instruction(edit, kind, self._rng)
            if wordings.ends_open(words):
                words = f"{words} it"
            words = wordings.spoken(words, self._rng)
            if self._rng.random() < 0.4 and words[:1].islower():
                words = self._rng.choice(_FOLLOW).replace("{}", words)
            return words + self._rng.choice(("", "", ".")), fenced(edit.after)
        return None

    def undo(self, versions: list[Function]) -> tuple[str, str]:
        """The code as it was before the last change."""
        versions.pop()
        return self._rng.choice(REQUESTS["undo"]), fenced(versions[-1].text)
