"""Conversations joined one after another: the later ones bring their own code, or need none.

Without these, most later messages in the training are about the code before them, and a model edits
that code even if a message brings its own or asks for no edit.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from akunu_py.edits.shown import code_in
from models.training.examples import Turns
from models.training.refusals import WHICH_CODE

_FIRST = {"short_edits": 0.3, "chats": 0.3, "people": 0.2, "hard_cases": 0.2}
_LATER = {"short_edits": 0.35, "refusals": 0.35, "people": 0.15, "hard_cases": 0.15}
_MORE = 0.4
"""Shares of kinds, and how often a conversation goes on once more."""
_MOST_CHARACTERS = 1600


def joined(
    conversations: Mapping[str, Sequence[Turns]], count: int, rng: random.Random
) -> Iterator[Turns]:
    """`count` conversations of two or more of the given ones, by kind."""
    made = 0
    while made < count:
        turns = list(_drawn(conversations, _FIRST, rng))
        while True:
            later = _drawn(conversations, _LATER, rng)
            if _stands_alone(later):
                turns += later
                if rng.random() >= _MORE:
                    break
        if sum(len(content) for _, content in turns) <= _MOST_CHARACTERS:
            made += 1
            yield turns


def _drawn(
    conversations: Mapping[str, Sequence[Turns]], shares: Mapping[str, float], rng: random.Random
) -> Turns:
    kind = rng.choices(list(shares), list(shares.values()))[0]
    return rng.choice(conversations[kind])


def _stands_alone(turns: Turns) -> bool:
    """Whether a conversation means the same after another one: it brings its code or needs none,
    and asks for none."""
    answers = [content for role, content in turns if role == "assistant"]
    brings = bool(code_in(turns[0][1]))
    return WHICH_CODE not in answers and (brings or "```" not in "".join(answers))
