"""The loop on a tiny random model: the same tokens, the same ends, the cache left in order."""

from collections.abc import Callable
from functools import cache
from itertools import islice
from random import Random

import mlx.core as mx
import pytest

from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.loop import Limits
from akunu_py.drafting.base import Drafter
from akunu_py.drafting.ngram import NGramDrafter
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.planning.planner import Planner
from akunu_py.rounds import Finish, Round
from akunu_py.sampling.sampler import Sampler
from tests.fakes import EveryOther, MoodyPlanner, OracleDrafter, rounds_of

NO_END: frozenset[int] = frozenset()
PROMPT = [Random(4).randrange(256) for _ in range(40)]


def prefilled(model: TargetModel, prompt: list[int], capacity: int = 256) -> KVCache:
    cache = model.make_cache(capacity)
    model.prefill(prompt[:-1], cache)
    return cache


def decoded(
    model: TargetModel,
    limits: Limits,
    drafter: Drafter | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
    *,
    capacity: int = 256,
    num_draft_tokens: int = 4,
    planner: Planner | None = None,
) -> list[Round]:
    """The rounds of an answer; plain decoding without a drafter."""
    cache = prefilled(model, PROMPT, capacity)
    if drafter:
        drafter.begin(PROMPT)
    sampler, done = Sampler(sampling, PROMPT), []
    for one in rounds_of(
        model,
        cache,
        sampler,
        PROMPT[-1],
        limits,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        planner=planner,
    ):
        assert cache.length <= capacity
        done.append(one)
    return done


def tokens_of(rounds: list[Round]) -> list[int]:
    return [token for one in rounds for token in one.tokens]


@pytest.fixture(scope="module")
def plain_tokens(model: TargetModel) -> Callable[[Sampling], list[int]]:
    """Plain decoding's first 80 tokens, decoded once for each sampling."""
    return cache(lambda sampling: tokens_of(decoded(model, Limits(80, NO_END), None, sampling)))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0, top_p=0.9, seed=11),
        Sampling(repetition_penalty=1.4, repetition_context_size=7, logit_bias=((65, 1.5),)),
        Sampling(temperature=0.8, seed=2, repetition_penalty=1.2),
        Sampling(presence_penalty=1.0, frequency_penalty=0.7, repetition_penalty=1.2),
    ],
)
@pytest.mark.parametrize(
    ("error", "silence", "num_draft_tokens"),
    [(0, 0, 9), (0.3, 0, 1), (0.3, 0, 4), (1, 0, 4), (0.2, 0.5, 9), (0, 1, 1)],
)
def test_no_draft_changes_the_tokens_of_plain_decoding(
    model: TargetModel,
    plain_tokens: Callable[[Sampling], list[int]],
    sampling: Sampling,
    *,
    error: float,
    silence: float,
    num_draft_tokens: int,
) -> None:
    limits, expected = Limits(80, NO_END), plain_tokens(sampling)
    drafter = OracleDrafter(len(PROMPT), expected, error=error, silence=silence)
    rounds = decoded(model, limits, drafter, sampling, num_draft_tokens=num_draft_tokens)

    assert tokens_of(rounds) == expected
    assert all(one.accepted <= one.drafted <= num_draft_tokens for one in rounds)
    assert [one.finish for one in rounds[:-1]] == [None] * (len(rounds) - 1)
    assert rounds[-1].finish is Finish.LENGTH


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_changes_the_tokens_of_plain_decoding(
    model: TargetModel,
    plain_tokens: Callable[[Sampling], list[int]],
    sampling: Sampling,
    seed: int,
) -> None:
    limits, expected = Limits(80, NO_END), plain_tokens(sampling)
    drafter = OracleDrafter(len(PROMPT), expected, error=0.2, silence=0.2, seed=seed)
    planner = MoodyPlanner(seed)
    rounds = decoded(model, limits, drafter, sampling, num_draft_tokens=8, planner=planner)

    assert tokens_of(rounds) == expected
    assert [(one.drafted, one.accepted) for one in rounds] == drafter.verified
    assert [token for report in planner.rounds for token in report.tokens] == expected
    assert all(one.drafted in planner.chosen for one in rounds if one.drafted)


def test_rounds_say_whether_they_were_pipelined(model: TargetModel) -> None:
    """Only those are timed beside which nothing else is in flight, or a step at either end."""
    limits = Limits(60, NO_END)
    expected = tokens_of(decoded(model, limits))
    planner = MoodyPlanner(1)
    drafter = OracleDrafter(len(PROMPT), expected, silence=0.5)
    decoded(model, limits, drafter, planner=planner)
    assert planner.rounds[0].seconds is None
    followed = [later.pipelined for later in planner.rounds[1:]]
    for report, is_followed in zip(planner.rounds[1:], followed[1:], strict=False):
        assert (report.seconds is not None) == (report.pipelined == is_followed)
    assert {report.seconds is None for report in planner.rounds if report.pipelined} == {
        False,
        True,
    }
    assert all(not report.draft for report in planner.rounds if report.pipelined)
    assert any(report.pipelined for report in planner.rounds)
    contexts = [report.context for report in planner.rounds]
    emitted = [len(report.tokens) for report in planner.rounds]
    assert contexts == [len(PROMPT) - 1 + sum(emitted[:i]) for i in range(len(emitted))]


def test_a_perfect_draft_takes_a_fifth_of_the_forwards(model: TargetModel) -> None:
    limits = Limits(80, NO_END)
    expected = tokens_of(decoded(model, limits))
    rounds = decoded(model, limits, OracleDrafter(len(PROMPT), expected))
    assert [len(one.tokens) for one in rounds] == [5] * 16
    assert all(one.has_bonus for one in rounds)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=5)])
@pytest.mark.parametrize("error", [0.0, 0.4])
def test_padded_rounds_emit_the_same_and_leave_the_cache_the_same(
    model: TargetModel,
    plain_tokens: Callable[[Sampling], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    sampling: Sampling,
    error: float,
) -> None:
    answer = plain_tokens(sampling)
    padded, forward = set[int](), model.forward

    def noting(tokens: mx.array, cache: KVCache) -> mx.array:
        padded.add(tokens.size)
        return forward(tokens, cache)

    monkeypatch.setattr(model, "padding", dict.fromkeys(range(2, 8), 8))
    monkeypatch.setattr(model, "forward", noting)
    drafter = OracleDrafter(len(PROMPT), answer, error=error, silence=0.3)
    capacity = len(PROMPT) + len(answer) + 2  # the last rounds have no room for all of the padding
    rounds = decoded(model, Limits(80, NO_END), drafter, sampling, capacity=capacity)
    assert tokens_of(rounds) == answer
    assert padded >= {1, 8}
    assert 7 not in padded  # as many as eight, or none
    drafted = [one for one in rounds if one.draft]
    assert all(1 <= len(one.tokens) <= 1 + len(one.draft) for one in drafted)


@pytest.mark.parametrize("position", [0, 1, 2, 3, 7, 23])
def test_the_first_end_token_by_position_ends_the_text(model: TargetModel, position: int) -> None:
    expected = tokens_of(decoded(model, Limits(60, NO_END)))
    first = expected.index(expected[position])
    later = expected[first + 1]
    limits = Limits(60, frozenset({expected[position], later}))
    cut = min(first, expected.index(later))

    for rounds in (
        decoded(model, limits),
        decoded(model, limits, OracleDrafter(len(PROMPT), expected)),
        decoded(model, limits, NGramDrafter()),
    ):
        assert tokens_of(rounds) == expected[:cut]
        assert rounds[-1].finish is Finish.EOS
        assert rounds[-1].end_token == expected[cut]
        assert rounds[-1].accepted <= len(rounds[-1].tokens)


def test_draft_tokens_after_an_end_token_are_not_verified(model: TargetModel) -> None:
    expected = tokens_of(decoded(model, Limits(60, NO_END)))
    end = expected.index(expected[22])
    limits = Limits(60, frozenset({expected[end]}))
    rounds = decoded(model, limits, OracleDrafter(len(PROMPT), expected), num_draft_tokens=9)
    assert rounds[-1].finish is Finish.EOS
    assert sum(one.drafted + 1 for one in rounds) <= end + 2


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 6, 17])
def test_no_token_is_emitted_beyond_those_wanted(model: TargetModel, wanted: int) -> None:
    expected = tokens_of(decoded(model, Limits(60, NO_END)))[:wanted]
    limits = Limits(wanted, NO_END)
    for rounds in (
        decoded(model, limits),
        decoded(model, limits, OracleDrafter(len(PROMPT), [*expected, 1, 2, 3, 4, 5])),
    ):
        assert tokens_of(rounds) == expected
        assert rounds[-1].finish is Finish.LENGTH


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 4, 5, 6, 11])
def test_a_full_cache_ends_the_text_with_all_it_could_hold(model: TargetModel, spare: int) -> None:
    capacity = len(PROMPT) + spare
    everything = tokens_of(decoded(model, Limits(60, NO_END)))[: spare + 1]
    limits = Limits(60, NO_END)
    for rounds in (
        decoded(model, limits, capacity=capacity),
        decoded(model, limits, OracleDrafter(len(PROMPT), everything), capacity=capacity),
        decoded(
            model,
            limits,
            OracleDrafter(len(PROMPT), everything, error=0.5, silence=0.4),
            capacity=capacity,
        ),
    ):
        assert tokens_of(rounds) == everything
        assert rounds[-1].finish is Finish.CONTEXT


def test_silent_drafters_leave_the_loop_pipelined(model: TargetModel) -> None:
    """While nothing is drafted, a forward runs ahead of the token that is being read."""
    limits = Limits(30, NO_END)
    cache = prefilled(model, PROMPT)
    drafter = OracleDrafter(len(PROMPT), [], silence=1)
    drafter.begin(PROMPT)
    loop = rounds_of(model, cache, Sampler(Sampling()), PROMPT[-1], limits, drafter=drafter)
    for emitted, _ in enumerate(loop, start=1):
        if emitted < limits.max_tokens:
            assert cache.length == len(PROMPT) + emitted, "the emitted token is in flight already"


def test_the_drafter_gets_every_token_even_if_the_caller_stops(model: TargetModel) -> None:
    expected = tokens_of(decoded(model, Limits(40, NO_END)))
    drafter = OracleDrafter(len(PROMPT), expected, silence=1)
    drafter.begin(PROMPT)
    cache, sampler = prefilled(model, PROMPT), Sampler(Sampling(), PROMPT)
    planner = EveryOther()
    loop = rounds_of(
        model, cache, sampler, PROMPT[-1], Limits(40, NO_END), drafter=drafter, planner=planner
    )
    emitted = tokens_of(list(islice(loop, 6)))
    assert drafter.num_seen < len(emitted)
    del loop
    assert drafter.num_seen == len(emitted)


def test_a_round_is_handed_over_before_a_blocking_sampler_waits_for_the_next(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    nucleus = Sampler(Sampling(temperature=1.0, top_p=0.9, seed=1), PROMPT)
    choose, chosen = nucleus.choose, list[int]()

    def noting(logits: mx.array, position: int) -> mx.array:
        chosen.append(position)
        return choose(logits, position)

    monkeypatch.setattr(nucleus, "choose", noting)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    rounds = rounds_of(model, prefilled(model, PROMPT), nucleus, PROMPT[-1], Limits(9, NO_END))
    for position, _ in enumerate(rounds, len(PROMPT)):
        assert chosen[-1] == position
