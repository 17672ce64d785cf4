"""Conversations that go on with others."""

import random

from models.training.edits import fenced
from models.training.examples import Turns
from models.training.joined import joined
from models.training.refusals import WHICH_CODE


def said(*texts: str) -> Turns:
    return [(("user", "assistant")[at % 2], text) for at, text in enumerate(texts)]


KINDS = ("short_edits", "refusals", "people", "hard_cases", "chats")
EDIT = said("rename x to y: x = 1", fenced("y = 1"))
REFUSED = said("Who are you?", "I am ember.")
ASKED = said("make it async", WHICH_CODE)
ASKED_LATER = said("Who are you?", "I am ember.", "make it async", WHICH_CODE)
WITHOUT_CODE = said("shorter please", fenced("y = 1"))


def test_only_what_means_the_same_there_follows() -> None:
    every = (EDIT, REFUSED, ASKED, ASKED_LATER, WITHOUT_CODE)
    made = list(joined(dict.fromkeys(KINDS, every), 60, random.Random(1)))
    assert len(made) == 60
    first = {turns[0] for turns in made}
    assert {one[0] for one in every} == first
    for turns in made:
        assert turns[-2:] in (EDIT, REFUSED)
        assert len(turns) >= 4
    assert any(len(turns) > 6 for turns in made)


def test_they_stay_short() -> None:
    long = said("rename x to y: x = 1", "y" * 900)
    kinds = dict.fromkeys(KINDS, (EDIT, long))
    for turns in joined(kinds, 30, random.Random(2)):
        assert sum(len(content) for _, content in turns) <= 1600
