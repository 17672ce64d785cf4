"""How edits are counted when the bundled model is evaluated, with a scorer of a few lines."""

import numpy as np

from benchmarks.evaluate_model import chat_edits, real_edits
from benchmarks.held_out import ChatCase, EditCase
from benchmarks.scoring import Score
from models.training.edits import Edit


class OneTokenACharacter:
    """Gets short answers right, and of long ones all but the last token."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def chat_prompt(self, turns: list[tuple[str, str]]) -> list[int]:
        return self.encode("".join(content for _, content in turns))

    def score(self, prompt: list[int], answer: list[int]) -> Score:
        hits = np.ones(len(answer), np.bool_)
        hits[-1] = len(prompt) + len(answer) <= 250
        return Score(hits, 0.0)


def case(kind: str, length: int) -> EditCase:
    code = "x" * (length - len("ask<|im_end|>"))
    return EditCase(Edit(kind, "ask", code, code), [("user", "ask")], code)


class Endless(OneTokenACharacter):
    """Never gets an answer right, and never ends it if it is asked to say `more`."""

    def score(self, prompt: list[int], answer: list[int]) -> Score:
        return Score(np.arange(len(answer)) < 3, 0.0)

    def answer(self, prompt: list[int], most: int) -> tuple[str, bool]:
        return "", "more" not in "".join(map(chr, prompt))


def test_wrong_edits_that_do_not_end_are_counted_as_loops() -> None:
    cases = [ChatCase("guard", [("user", words)], "x" * 9) for words in ("more", "less")]
    shares = chat_edits(Endless(), cases)["guard"]  # type: ignore[arg-type]
    assert (shares["cases"], shares["exact"], shares["loops"]) == (2, 0, 0.5)


def test_edits_are_counted_by_kind_and_by_length() -> None:
    cases = [case("decorate", 150), case("decorate", 151), case("guard", 1101), case("guard", 2001)]
    by_kind, by_length = real_edits(OneTokenACharacter(), cases)  # type: ignore[arg-type]
    assert {kind: row["cases"] for kind, row in by_kind.items()} == {
        "decorate": 2,
        "guard": 1,  # the other one is too long
        "all": 3,
    }
    assert {length: (row["cases"], row["exact"]) for length, row in by_length.items()} == {
        "up to 150": (1, 1),
        "up to 250": (1, 1),
        "up to 2,000": (1, 0),
    }
    assert by_kind["all"]["exact"] == 2 / 3
    assert by_kind["all"]["copied_right"] == 1
