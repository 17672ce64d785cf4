"""Functions with lines like others of theirs."""

import random

from models.training.functions import Function, is_function
from models.training.similar_lines import with_similar_lines

TEXT = """\
def setup(self, name, size=3):
    self.name = name
    if size > 10:
        raise ValueError(name)
    return self.name"""
LINES = TEXT.split("\n")


def made(seed: int) -> Function:
    function = Function(TEXT, is_method=True, origin="here")
    return with_similar_lines(function, random.Random(seed))


def test_lines_are_added_and_none_is_lost() -> None:
    texts = [made(seed).text for seed in range(40)]
    for text in texts:
        assert is_function(text)
        rest = iter(text.split("\n"))
        assert all(line in rest for line in LINES)  # in their order
    lengths = [text.count("\n") + 1 for text in texts]
    assert sum(length > len(LINES) for length in lengths) > 30
    assert max(lengths) <= 60


def test_added_lines_are_like_one_that_was_there() -> None:
    words = [set(line.replace("(", " ").replace(")", " ").split()) for line in LINES]
    for seed in range(40):
        for line in made(seed).text.split("\n"):
            mine = set(line.replace("(", " ").replace(")", " ").split())
            assert min(len(mine ^ other) for other in words) <= 4


def test_chance_is_seeded() -> None:
    assert made(7) == made(7)
