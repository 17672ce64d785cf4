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
from akunu_py.round import Finish, Round
from akunu_py.stats import Stats
from akunu_py.text.stream import Piece


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


def test_a_terminal_gets_marked_drafts_and_no_control_characters() -> None:
    stream = Terminal()
    writer = AnswerWriter(stream, show_drafts=True)
    writer.write([Piece("a", False), Piece("b\x1b", True), Piece("c", True), Piece("", False)])
    writer.end_line()
    assert stream.getvalue() == "a\x1b[32mb␛c\x1b[0m\n"


def test_drafts_are_not_marked_unless_asked_for() -> None:
    stream = Terminal()
    AnswerWriter(stream).write([Piece("a", True)])
    assert stream.getvalue() == "a"


def test_a_pipe_gets_the_text_unchanged() -> None:
    stream = StringIO()
    writer = AnswerWriter(stream, show_drafts=True)
    writer.write([Piece("a\x0c\r\n", True)])
    writer.end_line()
    assert stream.getvalue() == "a\x0c\r\n"


def test_only_an_open_line_is_ended() -> None:
    stream = StringIO()
    writer = AnswerWriter(stream)
    writer.end_line()
    writer.write([Piece("a", False), Piece("", False)])
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
    pieces = [Piece(text[at : at + size], False) for at in range(0, len(text), size)]
    with pytest.MonkeyPatch.context() as patch:
        shown = shown_on(columns, pieces, patch)
    assert shown.split() == text.split()
    for line in shown.split("\n"):
        assert len(line) <= columns or " " not in line.strip() or line.startswith("    ")


def test_a_chat_leaves_lines_of_code_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "```python\nlonger than the line\n```\n\n    indented as well\n"
    assert shown_on(10, [Piece(part, False) for part in code], monkeypatch) == code
    assert shown_on(10, [Piece(f"{code}some words more", True)], monkeypatch) == (
        f"{code}some words\nmore\n"
    )


FENCES = [
    "1. Run:\n\n   ```bash\n   a b c d e f\n   ```\n",
    "~~~\na b c d e f\n```\ng h i j k\n~~~\n",
]


@pytest.mark.parametrize("code", FENCES)
def test_code_is_known_by_any_fence(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on(9, [Piece(part, False) for part in code], monkeypatch) == code
    assert shown_on(9, [Piece(f"{code}a b c d e f", False)], monkeypatch) == f"{code}a b c d e\nf\n"


def test_code_in_a_line_of_prose_opens_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "```x = 1``` it is\nand this is prose"
    assert shown_on(12, [Piece(said, False)], monkeypatch) == (
        "```x = 1```\nit is\nand this is\nprose\n"
    )


def test_no_break_within_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on(4, [Piece("xxx❤\ufe0f b", False)], monkeypatch) == "xxx❤\ufe0f\nb\n"


def test_what_was_written_before_an_interrupt_is_not_repeated() -> None:
    class Interrupted(StringIO):
        def flush(self) -> None:
            raise KeyboardInterrupt

    stream = Interrupted()
    writer = AnswerWriter(stream)
    with pytest.raises(KeyboardInterrupt):
        writer.write([Piece("once", False)])
    with pytest.raises(KeyboardInterrupt):
        writer.end_line()
    assert stream.getvalue() == "once\n"


def test_notices_keep_their_lines_and_break_at_columns() -> None:
    assert wrapped("世界 世界 a\n  b c", 6) == "世界\n世界 a\n  b c"
    assert wrapped("a b", None) == "a b"


def test_wide_characters_take_two_columns_and_wait_for_no_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown_on(6, [Piece("a 日本語です", False)], monkeypatch) == "a 日本\n語です\n"
    monkeypatch.setattr(render, "columns_of", lambda _: 40)
    stream = Terminal()
    AnswerWriter(stream, wrap=True).write([Piece("日本語です", False)])
    assert stream.getvalue() == "日本語で"


def test_a_word_longer_than_the_line_is_shown_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "columns_of", lambda _: 10)
    stream = Terminal()
    AnswerWriter(stream, wrap=True).write([Piece("x", False)] * 25)
    assert stream.getvalue() == "x" * 20


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
