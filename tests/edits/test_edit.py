"""An edit without an engine: what it asks, and what it says while the answer comes."""

from collections.abc import Generator, Sequence

import pytest

from akunu_py.edits.edit import Edit, Question, Said, Wanted
from akunu_py.errors import EditError
from akunu_py.events import Event
from akunu_py.rounds import Finish, Round, Stats
from akunu_py.text.stream import Piece
from akunu_py.text.tokenizer import Message
from akunu_py.tokens import Origin

OLD = "import os\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    return x\n"
NEW = OLD.replace("x", "y")


def count(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def begin(wanted: Wanted, limit: int = 10_000) -> Edit:
    return Edit("f.py", OLD, wanted, count, limit)


def slowly(answer: str, finish: Finish = Finish.EOS) -> Generator[Said | None, None, None]:
    """An answer that comes a character at a time, each after a while without one."""
    for at, character in enumerate(answer, 1):
        yield None
        end = finish if at == len(answer) else None
        yield Event(Round((1,), finish=end), (Piece(character, Origin.NONE),), Stats())


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{NEW}```",
        "<<<<<<< SEARCH\ndef f(x):\n    return x\n=======\ndef f(y):\n    return y\n"
        ">>>>>>> REPLACE\n<<<<<<< SEARCH\ndef g(x):\n    return x\n=======\n"
        "def g(y):\n    return y\n>>>>>>> REPLACE\n",
    ],
)
def test_the_new_text_comes_in_pieces(answer: str) -> None:
    edit = begin(Wanted("Rename `x` to `y`"))
    pieces = list(edit.answer(lambda _: slowly(answer), as_text=True))
    assert pieces.count(None) == len(answer)
    assert "".join(piece for piece in pieces if piece is not None) == edit.new == NEW
    assert edit.doubt is None


def test_a_part_comes_within_the_rest() -> None:
    edit = begin(Wanted("Rename `x` to `y`", function="f"))
    answer = "```\ndef f(y):\n    return y\n```"
    pieces = [piece for piece in edit.answer(lambda _: slowly(answer), as_text=True) if piece]
    assert pieces[0] == "import os\n\n\n"
    assert "".join(pieces) == edit.new == OLD.replace("f(x):\n    return x", "f(y):\n    return y")


def test_an_answer_that_was_cut_leaves_the_text() -> None:
    edit = begin(Wanted("Rename `x` to `y`"))
    with pytest.raises(EditError, match="cut"):
        list(edit.answer(lambda _: slowly("```\nimport", Finish.LENGTH)))
    assert edit.new == OLD


def test_an_update_is_shown_before_the_text_and_judged_by() -> None:
    update = "```\n# ... existing code ...\ndef g(y):\n    return y\n```"
    edit = begin(Wanted("", update=update))
    (question,) = edit.questions
    asked = question.messages[-1]["content"]
    assert asked.index(update) < asked.index(OLD.strip())
    assert asked.endswith("\n````")

    def answered(_: Question) -> Generator[Said | None, None, None]:
        return slowly(f"```\n{OLD.replace('return x', 'return z')}```")

    list(edit.answer(answered))
    assert edit.doubt is not None
    assert "return z" in edit.doubt
