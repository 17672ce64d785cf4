"""Answers on a terminal and in a pipe, the line of statistics, and the bar for long prompts."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.cli import render
from akunu_py.cli.render import (
    PLAIN,
    AnswerWriter,
    palette_for,
    prefill_bar,
    printable,
    stats_line,
    wrapped,
)
from akunu_py.drafting.base import Draft
from akunu_py.rounds import Finish, Round, Stats
from akunu_py.text.stream import Piece
from akunu_py.tokens import Origin


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown if c not in "\n\t")


@given(st.text(st.characters(min_codepoint=0xA0)))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert printable(f"{text}\n\t") == f"{text}\n\t"


def test_control_characters_become_symbols() -> None:
    assert printable("a\x1b[31mb\x07\x7f\x9b\r\n") == "a␛[31mb␇␡\ufffd\n"


PIECES = [
    Piece("a", Origin.NONE),
    Piece("b\x1b", Origin.COPIES),
    Piece("c\r\n", Origin.COPIES),
    Piece("", Origin.NONE),
]


@pytest.mark.parametrize(
    ("stream", "show_drafts", "shown"),
    [
        (Terminal(), True, "a\x1b[32mb␛c\n\x1b[0m"),
        (Terminal(), False, "ab␛c\n"),
        (StringIO(), True, "ab\x1bc\r\n"),
    ],
    ids=["drafts are marked", "unless they are not to be", "a pipe gets the text unchanged"],
)
def test_an_answer(stream: StringIO, show_drafts: bool, shown: str) -> None:
    writer = AnswerWriter(stream, show_drafts=show_drafts)
    writer.write(PIECES)
    writer.end_line()
    assert stream.getvalue() == shown


def test_only_an_open_line_is_ended() -> None:
    stream = StringIO()
    writer = AnswerWriter(stream)
    writer.end_line()
    writer.write([Piece("a", Origin.NONE), Piece("", Origin.NONE)])
    writer.end_line()
    writer.end_line()
    assert stream.getvalue() == "a\n"


def shown_on(columns: int, pieces: list[Piece], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a chat on a terminal of a width shows of an answer."""
    monkeypatch.setattr(render, "columns_of", lambda _: columns)
    stream = Terminal()
    writer = AnswerWriter(stream, wrap=True)
    for piece in pieces:
        writer.write([piece])
    writer.end_line()
    return stream.getvalue()


@given(st.text(" abc\n", max_size=60), st.integers(4, 20), st.integers(1, 5))
def test_a_chat_breaks_lines_between_words_only(text: str, columns: int, size: int) -> None:
    pieces = [Piece(text[at : at + size], Origin.NONE) for at in range(0, len(text), size)]
    with pytest.MonkeyPatch.context() as patch:
        shown = shown_on(columns, pieces, patch)
    assert shown.split() == text.split()
    for line in shown.split("\n"):
        assert len(line) <= columns or " " not in line.strip() or line.startswith("    ")


@pytest.mark.parametrize(
    ("columns", "said", "shown"),
    [
        (12, "```x = 1``` it is\nand this is prose", "```x = 1```\nit is\nand this is\nprose\n"),
        (4, "xxx❤\ufe0f b", "xxx❤\ufe0f\nb\n"),
        (6, "a 日本語です", "a 日本\n語です\n"),
    ],
    ids=["code in a line of prose opens no fence", "no break within a character",
         "wide characters take two columns"],
)  # fmt: skip
def test_where_lines_are_broken(
    columns: int, said: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown_on(columns, [Piece(said, Origin.NONE)], monkeypatch) == shown


@pytest.mark.parametrize(
    "code",
    [
        "```python\nlonger than the line\n```\n\n    indented as well\n",
        "1. Run:\n\n   ```bash\n   a b c d e f\n   ```\n",
        "~~~\na b c d e f\n```\ng h i j k\n~~~\n",
    ],
)
def test_lines_of_code_are_left_as_they_are(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on(9, [Piece(part, Origin.NONE) for part in code], monkeypatch) == code
    assert (
        shown_on(9, [Piece(f"{code}a b c d e f", Origin.COPIES)], monkeypatch)
        == f"{code}a b c d e\nf\n"
    )


def test_what_was_written_before_an_interrupt_is_not_repeated() -> None:
    class Interrupted(StringIO):
        def flush(self) -> None:
            raise KeyboardInterrupt

    stream = Interrupted()
    writer = AnswerWriter(stream)
    with pytest.raises(KeyboardInterrupt):
        writer.write([Piece("once", Origin.NONE)])
    with pytest.raises(KeyboardInterrupt):
        writer.end_line()
    assert stream.getvalue() == "once\n"


def test_notices_keep_their_lines_and_break_at_columns() -> None:
    assert wrapped("世界 世界 a\n  b c", 6) == "世界\n世界 a\n  b c"
    assert wrapped("a b", None) == "a b"


@pytest.mark.parametrize(
    ("columns", "pieces", "shown"),
    [
        (40, [Piece("日本語です", Origin.NONE)], "日本語で"),
        (10, [Piece("x", Origin.NONE)] * 25, "x" * 20),
    ],
    ids=["wide characters wait for no space", "nor does a word longer than the line"],
)
def test_what_is_shown_before_a_line_ends(
    columns: int, pieces: list[Piece], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "columns_of", lambda _: columns)
    stream = Terminal()
    AnswerWriter(stream, wrap=True).write(pieces)
    assert stream.getvalue() == shown


def test_no_colour_if_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert palette_for(StringIO()) == PLAIN
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("3" in style for style in vars(palette_for(Terminal())).values())
    monkeypatch.setenv("TERM", "dumb")
    assert palette_for(Terminal()) == PLAIN


def test_the_statistics_have_size_speculation_and_speed() -> None:
    stats = Stats()
    stats.add(Round((1, 2, 3), Draft((1, 2, 0, 0)), accepted=2))
    stats.add(Round((4,)))
    stats.decode_s = 0.002
    line = stats_line(stats, Finish.EOS)
    assert line == "4 tokens · 2.00 tokens per pass · 50% of drafts accepted · 2,000 tokens/s"


@pytest.mark.parametrize(
    ("plain_s", "shown"),
    [
        (0.0042, "2.1 times as fast as without drafts"),
        (0.00208, "2.00 tokens per pass"),
        (0.001, "2.00 tokens per pass"),
        (0.0, "2.00 tokens per pass"),
    ],
)
def test_what_drafts_brought_is_told_if_it_is_known_and_a_gain(plain_s: float, shown: str) -> None:
    stats = Stats(plain_s=plain_s, decode_s=0.002)
    stats.add(Round((1, 2)))
    assert shown in stats_line(stats)


def test_an_end_token_counts_as_a_token_of_its_forward() -> None:
    stats = Stats()
    for tokens in [(1,), (2,), ()]:
        stats.add(Round(tokens))
    assert stats_line(stats, Finish.EOS) == "2 tokens · 1.00 tokens per pass"
    assert stats_line(stats, Finish.STOP) == "2 tokens · 1.00 tokens per pass"
    assert stats_line(stats) == "2 tokens · 1.00 tokens per pass"


def test_the_statistics_tell_when_the_context_is_nearly_full() -> None:
    stats = Stats(prompt_tokens=80)
    stats.add(Round((1, 2)))
    assert stats_line(stats, None, 100) == "2 tokens · 2.00 tokens per pass · context 82% full"
    assert "context" not in stats_line(stats, None, 200)
    assert "context" not in stats_line(stats)


def test_the_statistics_have_the_ending_if_it_was_not_the_models() -> None:
    assert stats_line(Stats(), Finish.CANCELLED) == "0 tokens · interrupted"
    assert stats_line(Stats(), Finish.LENGTH) == "0 tokens · stopped at the token limit"
    assert stats_line(Stats(), Finish.CONTEXT) == "0 tokens · the context is full"


def test_a_long_prompt_has_a_bar_that_vanishes() -> None:
    stream = Terminal()
    bar = prefill_bar(stream)
    bar(2048, 10000)
    bar(10000, 10000)
    assert "reading the prompt" in stream.getvalue()
    shown = len(stream.getvalue())
    bar.close()
    assert len(stream.getvalue()) == shown


def test_a_short_prompt_or_a_pipe_has_none() -> None:
    for stream, total in ((Terminal(), 3000), (StringIO(), 10000)):
        bar = prefill_bar(stream)
        bar(2048, total)
        bar.close()
        assert stream.getvalue() == ""
