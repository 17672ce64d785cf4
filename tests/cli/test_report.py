"""The line about an answer, and the bar before it."""

from io import StringIO

from akunu_py.cli.progress import PrefillBar
from akunu_py.cli.report import stats_line
from akunu_py.drafting.base import Draft
from akunu_py.stats import Finish, Round, Stats
from tests.cli.test_render import Terminal


def test_tells_size_speculation_and_speed() -> None:
    stats = Stats()
    stats.add(Round((1, 2, 3), Draft((1, 2, 0, 0)), accepted=2))
    stats.add(Round((4,)))
    stats.decode_s = 0.002
    line = stats_line(stats, Finish.EOS)
    assert line == "4 tokens · 2.00 per forward · 50% of drafts accepted · 2,000 tokens/s"


def test_tells_of_near_ties() -> None:
    stats = Stats()
    stats.add(Round((1, 2), Draft((1, 0, 0, 0)), accepted=1, recheck_forwards=5))
    assert (stats.target_forwards, stats.target_tokens, stats.recheck_forwards) == (6, 10, 5)
    assert "· 1 near-tie decided again" in stats_line(stats)


def test_tells_an_ending_that_was_not_the_models() -> None:
    assert stats_line(Stats(), Finish.CANCELLED) == "0 tokens · interrupted"
    assert stats_line(Stats(), Finish.LENGTH) == "0 tokens · stopped at the token limit"
    assert stats_line(Stats(), Finish.CONTEXT) == "0 tokens · the context is full"


def test_a_long_prompt_has_a_bar_that_vanishes() -> None:
    stream = Terminal()
    bar = PrefillBar(stream)
    bar(2048, 10000)
    bar(10000, 10000)
    assert "reading the prompt" in stream.getvalue()
    shown = len(stream.getvalue())
    bar.close()
    assert len(stream.getvalue()) == shown


def test_a_short_prompt_or_a_pipe_has_none() -> None:
    for stream, total in ((Terminal(), 3000), (StringIO(), 10000)):
        bar = PrefillBar(stream)
        bar(2048, total)
        bar.close()
        assert stream.getvalue() == ""
