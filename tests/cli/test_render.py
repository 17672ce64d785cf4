"""Answers on a terminal and in a pipe."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.cli.render import PLAIN, AnswerWriter, palette_for, printable
from akunu_py.text.stream import Piece


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text())
def test_nothing_printable_commands_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown if c not in "\n\t")


@given(st.text(st.characters(min_codepoint=0xA0)))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert printable(f"{text}\n\t") == f"{text}\n\t"


def test_control_characters_become_symbols() -> None:
    assert printable("a\x1b[31mb\x07\x7f\x9b\r\n") == "a␛[31mb␇␡\ufffd\n"


def test_a_terminal_gets_marked_drafts_and_harmless_text() -> None:
    stream = Terminal()
    writer = AnswerWriter(stream, show_drafts=True)
    writer.write([Piece("a", False), Piece("b\x1b", True), Piece("c", True), Piece("", False)])
    writer.end_line()
    assert stream.getvalue() == "a\x1b[32mb␛c\x1b[0m\n"


def test_drafts_are_not_marked_unless_asked_for() -> None:
    stream = Terminal()
    AnswerWriter(stream).write([Piece("a", True)])
    assert stream.getvalue() == "a"


def test_a_pipe_gets_the_text_as_it_is() -> None:
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


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert palette_for(StringIO()) == PLAIN
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("3" in style for style in vars(palette_for(Terminal())).values())
    monkeypatch.setenv("TERM", "dumb")
    assert palette_for(Terminal()) == PLAIN
