"""Typing with llama.vim: a keystroke costs only what it changed.

The bound for every request after the first: only those tokens of the line are computed that come
after its common prefix with the line before, and at least one. A keystroke often changes how the
last word is tokenized, so it changes one to three tokens. Enter inserts the line before the text
after the cursor, so that text is computed again, once.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from akunu_py.tokens import common_prefix_length
from tests.server.live import LiveServer, wait_until
from tests.wire.test_llama_clients import infill_body

BEFORE, AFTER = 1200, 400
"""Characters around the gap: about 500 tokens."""
SEAMS = 3
"""Tokens of a prompt besides those of its texts: two special ones, and one where texts meet."""
LINE = "    words = [word.strip() for word in text.split()]"
NEXT_LINE = "    return sorted(words, key=len)"
KEYSTROKES = 8


@dataclass(frozen=True)
class Cursor:
    """A place in a file, and what has been typed there.

    Attributes:
        prefix: whole lines before the cursor's.
        line: up to the cursor.
        suffix: what follows the line.
    """

    prefix: str
    line: str
    suffix: str

    def body(self, **changes: Any) -> dict[str, Any]:
        """The plugin's body at this place, but for a shorter completion."""
        return infill_body(
            input_prefix=self.prefix,
            prompt=self.line,
            input_suffix=self.suffix,
            input_extra=[],
            **{"n_predict": 2} | changes,
        )


@pytest.fixture
def cursor(live: LiveServer) -> Cursor:
    """In the middle of a file of the standard library, on an empty line; no cache has seen it."""
    live.reset()
    code = Path(textwrap.__file__).read_text(encoding="utf-8")
    middle = code.index("\n\n", BEFORE) + 1
    return Cursor(code[middle - BEFORE : middle], "", code[middle : middle + AFTER])


def typed(cursor: Cursor, line: str, keystrokes: int) -> Iterator[Cursor]:
    """The cursor after each keystroke at the end of a line, and before the first."""
    for end in range(len(line) - keystrokes, len(line) + 1):
        yield replace(cursor, line=line[:end])


def tokens_of(live: LiveServer, text: str) -> list[int]:
    return list(live.post("/tokenize", {"content": text}).json()["tokens"])


def computed(live: LiveServer, cursor: Cursor) -> int:
    """How many prompt tokens were computed; all others come from a cache."""
    fields = ["timings/prompt_n", "tokens_cached", "tokens_evaluated"]
    answer = live.post("/infill", cursor.body(response_fields=fields)).json()
    assert answer["timings/prompt_n"] + answer["tokens_cached"] == answer["tokens_evaluated"]
    return int(answer["timings/prompt_n"])


def changed(live: LiveServer, before: str, after: str) -> int:
    """How many tokens a line has that the one before it did not begin with; 1 at least."""
    old, new = tokens_of(live, before), tokens_of(live, after)
    return max(1, len(new) - common_prefix_length(old, new))


def assert_only_changes_are_computed(live: LiveServer, cursors: list[Cursor]) -> None:
    for before, after in pairwise(cursors):
        assert computed(live, after) <= changed(live, before.line, after.line)


def test_a_keystroke_computes_only_the_tokens_that_it_changed(
    live: LiveServer, cursor: Cursor
) -> None:
    cursors = list(typed(cursor, LINE, KEYSTROKES))
    assert len(cursors) == 1 + KEYSTROKES
    assert 400 < computed(live, cursors[0]) < 600
    assert_only_changes_are_computed(live, cursors)


def test_enter_computes_the_text_after_the_cursor_once(live: LiveServer, cursor: Cursor) -> None:
    before = replace(cursor, line=LINE)
    computed(live, before)
    after = replace(cursor, prefix=f"{cursor.prefix}{LINE}\n")
    cursors = list(typed(after, NEXT_LINE, KEYSTROKES))
    moved = changed(live, cursor.prefix, after.prefix)
    behind = len(tokens_of(live, cursor.suffix)) + len(tokens_of(live, cursors[0].line))
    assert computed(live, cursors[0]) <= moved + behind + SEAMS
    assert_only_changes_are_computed(live, cursors)


def test_two_editors_cost_no_more_than_one(live: LiveServer, cursor: Cursor) -> None:
    other = replace(cursor, prefix=f"# Another file.\n{cursor.prefix}")
    computed(live, cursor)
    computed(live, other)
    for line in ("    x", "    x = 1"):
        for here in (cursor, other):
            assert computed(live, replace(here, line=line)) <= len(tokens_of(live, line))


def test_cancelled_work_serves_the_next_keystroke(live: LiveServer, cursor: Cursor) -> None:
    """Every keystroke cancels the request before it, during prefill or decoding."""
    cursors = list(typed(cursor, LINE, KEYSTROKES))
    computed_before, decoded_before = live.counters.prefill_tokens, live.counters.rounds
    changes = {"n_predict": 1000, "ignore_eos": True, "num_draft_tokens": 0}
    for here in cursors:
        with live.dial("/infill", here.body(**changes)):
            wait_until(lambda: live.service.processing or live.service.worker.queue_depth)
        live.log.wait_for("499")
    live.settle()
    cold = len(tokens_of(live, cursor.prefix + LINE + cursor.suffix)) + 2 * SEAMS
    line = sum(changed(live, old.line, new.line) for old, new in pairwise(cursors))
    assert live.counters.prefill_tokens - computed_before <= cold + line
    assert live.counters.rounds - decoded_before < 1000, "none of them was decoded to its end"


def test_a_warm_server_answers_like_a_cold_one(live: LiveServer, cursor: Cursor) -> None:
    cursors = list(typed(cursor, LINE, KEYSTROKES))[::KEYSTROKES]

    def answer(here: Cursor) -> str:
        body = here.body(n_predict=12, samplers=["temperature"], temperature=0)
        return str(live.post("/infill", body).json()["content"])

    warm = [answer(here) for here in cursors]
    for here, text in list(zip(cursors, warm, strict=True))[1:]:  # the first one was cold
        live.reset()
        assert answer(here) == text
