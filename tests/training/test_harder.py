"""Functions with lines like others of theirs, and with comments."""

import random
import re

from models.training.edits import layout
from models.training.edits.base import Pool
from models.training.functions import Function, is_function
from models.training.harder import comments_of, with_comments, with_similar_lines

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


def test_comments_come_and_go_without_a_trace() -> None:
    function = Function(TEXT, is_method=True, origin="here")
    words = comments_of([Function("def f():\n    # one two\n    pass", False, "")])
    assert words == ["one two"]
    rng = random.Random(3)
    texts = [with_comments(function, words, rng) for _ in range(40)]
    for commented in texts:
        edit = layout.drop_comments(commented, rng, Pool((), ()))
        assert edit is not None
        assert edit.after == TEXT
    assert any(re.search(r"\S  # ", one.text) for one in texts)
    assert sum("# self.name" in one.text for one in texts) > 2  # code that is commented out


def test_a_comment_is_never_empty_and_never_in_a_string() -> None:
    text = 'def f(x):\n    y = """abc\n    """\n\n    return x + y'
    rng = random.Random(5)
    for _ in range(60):
        commented = with_comments(Function(text, is_method=False, origin=""), ["word"], rng)
        assert not re.search(r"# *$", commented.text, re.MULTILINE)
        edit = layout.drop_comments(commented, rng, Pool((), ()))
        assert edit is not None
        assert edit.after == text
