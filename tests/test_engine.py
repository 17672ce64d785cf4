"""The engine as a caller sees it, on a tiny random model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

import akunu_py
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError, InvalidRequestError, RankError
from akunu_py.machine.backend import Backend, ModelShape
from akunu_py.options import Options, Sampling
from akunu_py.planning.cost_curve import MEASURED
from akunu_py.rounds import EngineCounters, Finish
from akunu_py.sequence import Sequence
from akunu_py.text.fim import FillRequest
from tests.fakes import OracleDrafter, drafted_answer
from tests.tiny_model import write_tiny_model

PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\ndef mean(values):\n"


def random_prompt(seed: int, length: int = 30) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(256) for _ in range(length)]


def test_text_tokens_and_sums_belong_together(engine: Engine) -> None:
    answer = engine.generate(PROMPT, Options(max_tokens=50))
    stats = answer.stats
    assert answer.text == engine.tokenizer.decode(answer.token_ids)
    assert len(answer.token_ids) == stats.generated_tokens <= 50
    assert stats.generated_tokens == stats.accepted + stats.bonus + stats.corrected + stats.plain
    assert stats.prompt_tokens == len(engine.tokenizer.encode(PROMPT))
    assert 0 < stats.ttft_s <= stats.prefill_s + stats.decode_s + 1e-6


def test_what_drafts_bring_is_known_once_costs_are_measured(tiny_model_dir: Path) -> None:
    engine = akunu_py.load(str(tiny_model_dir))
    assert engine.generate(PROMPT, Options(max_tokens=4, drafter="none")).stats.speedup is None
    costs = engine.costs.alone()
    engine.costs.trust(replace(costs.curve, doubt=MEASURED))
    stats = engine.generate(PROMPT, Options(max_tokens=20)).stats
    assert stats.plain_s > 0
    assert stats.speedup == stats.plain_s / stats.decode_s
    together = engine.generate_batch([PROMPT] * 2, Options(max_tokens=4))
    assert [one.stats.speedup for one in together] == [None, None]


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_streamed_events_add_up_to_the_completion(engine: Engine, drafter: str) -> None:
    """A reader that lags behind the engine still sees the sums up to each event."""
    options = Options(max_tokens=40, drafter=drafter)
    whole = engine.generate(PROMPT, options)
    events = list(engine.stream(PROMPT, options))
    assert "".join(event.text for event in events) == whole.text
    assert [token for event in events for token in event.tokens] == whole.token_ids
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason == whole.finish_reason
    assert sum(bool(p.drafted) for one in events for p in one.pieces) == whole.stats.accepted
    emitted = drafted = 0
    for event in events:
        emitted += len(event.tokens)
        drafted += event.round.drafted
        assert (event.stats.generated_tokens, event.stats.drafted) == (emitted, drafted)
        assert sum(event.stats.accepted_by_position) == event.stats.accepted


@pytest.mark.parametrize("drafter", ["auto", "ngram", "none"])
def test_references_are_drafted_from_and_change_nothing(engine: Engine, drafter: str) -> None:
    options = Options(60, drafter=drafter, num_draft_tokens=6)
    alone = engine.generate(random_prompt(8), options)
    told = engine.generate(random_prompt(8), replace(options, references=(PROMPT, alone.text)))
    assert told.token_ids == alone.token_ids
    assert told.stats.prompt_tokens == alone.stats.prompt_tokens


@pytest.mark.parametrize("weights", ["dense", "quantized"])
def test_equals_mlx_lms_own_greedy_output(
    tiny_model_dir: Path, quantized_model_dir: Path, weights: str
) -> None:
    folder = quantized_model_dir if weights == "quantized" else tiny_model_dir
    engine = akunu_py.load(akunu_py.ModelOptions(str(folder), weights=weights))
    for seed in range(0, 12, 2):
        prompt = random_prompt(seed, 5 + 7 * seed)
        theirs = stream_generate(
            engine.model.network, engine.tokenizer.wrapped, prompt, max_tokens=48
        )
        reference = [one.token for one in theirs if one.token not in engine.tokenizer.end_tokens]
        for drafter in ("none", "ngram"):
            answer = engine.generate(prompt, Options(max_tokens=48, drafter=drafter))
            assert answer.token_ids == reference


@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("prompt", [random_prompt(1, 50), random_prompt(2, 3)])
def test_penalty_and_bias_work_as_in_mlx_lm(
    engine: Engine, prompt: list[int], drafter: str
) -> None:
    sampling = Sampling(
        repetition_penalty=1.3, repetition_context_size=12, logit_bias=((66, 2.0), (7, -1.0))
    )
    processors = make_logits_processors({66: 2.0, 7: -1.0}, 1.3, 12)
    steps = generate_step(
        mx.array(prompt), engine.model.network, max_tokens=48, logits_processors=processors
    )
    reference = [int(token) for token, _ in steps]
    ends = [i for i, token in enumerate(reference) if token in engine.tokenizer.end_tokens]
    answer = engine.generate(prompt, Options(48, drafter=drafter).sampled_as(sampling))
    assert answer.token_ids == reference[: ends[0] if ends else None]


def test_a_seed_gives_the_same_text_whatever_is_drafted(engine: Engine) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, seed=5)
    texts = {
        engine.generate(
            PROMPT, Options(60, drafter=drafter, num_draft_tokens=n).sampled_as(sampling)
        ).text
        for drafter, n in (("none", 4), ("ngram", 1), ("ngram", 4), ("ngram", 12))
    }
    assert len(texts) == 1


def test_seeds_differ_and_no_seed_draws_one(engine: Engine) -> None:
    def text(seed: int | None) -> str:
        sampling = Sampling(temperature=1.5, seed=seed)
        return engine.generate(PROMPT, Options(40).sampled_as(sampling)).text

    assert len({text(1), text(2), text(None), text(None)}) == 4


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_stop_string_cuts_text_and_counters(engine: Engine, drafter: str) -> None:
    whole = engine.generate(PROMPT, Options(max_tokens=60, drafter="none"))
    stop = whole.text[20:23]
    answer = engine.generate(PROMPT, Options(max_tokens=60, stop=(stop,), drafter=drafter))
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.finish_reason is Finish.STOP
    assert stop in engine.tokenizer.decode(answer.token_ids)
    assert answer.stats.generated_tokens == len(answer.token_ids) < 60


def test_drafts_do_not_go_beyond_a_stop_string(engine: Engine) -> None:
    whole = engine.generate(PROMPT, Options(max_tokens=60, drafter="none"))
    length = len(engine.tokenizer.encode(PROMPT))
    stop = whole.text[20:23]
    options = Options(60, stop=(stop,), num_draft_tokens=20)
    oracle = OracleDrafter(length, whole.token_ids)
    answer = drafted_answer(engine, oracle, PROMPT, options)
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.stats.target_tokens <= len(answer.token_ids) + 1


def test_zero_tokens_only_fill_the_cache(engine: Engine) -> None:
    answer = engine.generate(PROMPT, Options(max_tokens=0))
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", [], Finish.LENGTH)
    again = engine.generate(PROMPT, Options(max_tokens=1))
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1


def test_no_limit_continues_to_the_end_of_the_context(tiny_model_dir: Path) -> None:
    engine = akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), max_context=96))
    for drafts in (Options(None, drafter="none"), Options(None, num_draft_tokens=5)):
        answer = engine.generate(random_prompt(3), drafts)
        assert answer.finish_reason is Finish.CONTEXT
        assert answer.stats.prompt_tokens + len(answer.token_ids) == 96
    full = random_prompt(3, 96)
    assert engine.generate(full[1:], Options(None)).stats.generated_tokens == 1
    assert engine.generate(full, Options(0)).finish_reason is Finish.LENGTH
    with pytest.raises(ContextOverflowError, match="exceeds the available context size of 96"):
        engine.generate(full)


class TestPrefixReuse:
    def test_an_answer_broken_off_leaves_a_usable_cache(self, engine: Engine) -> None:
        prompt = random_prompt(2, 40)
        whole = engine.generate(prompt, Options(max_tokens=40)).token_ids
        engine.reset()
        stream = engine.stream(prompt, Options(max_tokens=40))
        begun = [token for _ in range(3) for token in next(stream).tokens]
        stream.close()
        answer = engine.generate([*prompt, *begun], Options(max_tokens=40 - len(begun)))
        assert answer.stats.cached_tokens >= len(prompt)
        assert [*begun, *answer.token_ids] == whole


class TestCancelling:
    def test_a_cancelled_prefill_ends_after_the_current_chunk(self, tiny_model_dir: Path) -> None:
        engine = akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), prefill_step_size=16))
        prompt = random_prompt(4, 300)
        sequence = Sequence(prompt, Options(reports_progress=True), may_be_cancelled=True)
        for event in engine.stream(sequence):
            sequence.cancelled = (event.prompt_done or 0) >= 100
        assert event.finish_reason is Finish.CANCELLED
        assert engine.counters == EngineCounters(requests=1, prefill_chunks=7, prefill_tokens=112)
        again = engine.generate(prompt, Options(max_tokens=1))
        assert again.stats.cached_tokens == 112, "what was computed is kept"
        assert engine.counters.prefill_tokens == 299

    @pytest.mark.parametrize(
        ("device", "shape", "context", "whole", "cancellable"),
        [
            ("metal", ModelShape(32, 128, False), 100_000, 2048, 1024),
            ("metal", ModelShape(32, 128, True), 100_000, 2048, 2048),
            ("metal", ModelShape(16, 256, True), 4_000, 2048, 2048),
            ("metal", ModelShape(16, 256, False), 77_000, 128, 128),
            ("cuda", ModelShape(16, 256, False), 77_000, 2048, 1024),
            ("cpu", ModelShape(16, 256, False), 77_000, 128, 128),
        ],
    )
    def test_chunks_are_as_large_as_the_device_the_model_and_the_user_allow(
        self, device: Any, shape: ModelShape, context: int, whole: int, cancellable: int
    ) -> None:
        step = partial(Backend(device, "a chip").prefill_step, shape, context)
        assert (step(cancellable=False), step(cancellable=True)) == (whole, cancellable)

    def test_cancelled_decoding_ends_after_the_current_round(self, engine: Engine) -> None:
        sequence = Sequence(PROMPT, Options(max_tokens=60))
        stream = engine.stream(sequence)
        before = engine.counters.rounds
        next(stream)
        sequence.cancelled = True
        (last,) = stream
        assert last.finish_reason is Finish.CANCELLED
        assert 0 < last.stats.target_forwards <= 2 == engine.counters.rounds - before

    def test_a_sequence_is_answered_once(self, engine: Engine) -> None:
        sequence = Sequence(PROMPT, Options(1))
        engine.generate(sequence)
        with pytest.raises(InvalidRequestError, match="make another one"):
            engine.stream(sequence)
        with pytest.raises(InvalidRequestError, match="make another one"):
            engine.generate_batch([same := Sequence(PROMPT), same])
        assert not any(slot.busy for slot in engine.slots)

    def test_a_sequence_has_its_options(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequestError, match="has its own options"):
            engine.generate(Sequence(PROMPT), Options(1))
        with pytest.raises(InvalidRequestError, match="not dict"):
            engine.generate(PROMPT, {"max_tokens": 1})  # type: ignore[arg-type]

    def test_a_stream_that_is_refused_leaves_the_one_before(self, engine: Engine) -> None:
        stream = engine.stream(PROMPT, Options(20))
        next(stream)
        with pytest.raises(InvalidRequestError):
            engine.stream(PROMPT, Options(drafter="nope"))
        assert list(stream)

    def test_a_request_can_be_cancelled_before_the_prefill(self, engine: Engine) -> None:
        events = list(engine.stream(Sequence(PROMPT, cancelled=True)))
        assert [event.finish_reason for event in events] == [Finish.CANCELLED]
        assert events[0].stats.target_forwards == 0


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("", {}, "prompt is empty"),
        ([1, 1.5], {}, "whole numbers"),
        ([1] * 1025, {}, "has 1025 tokens and exceeds the available context size of 1024"),
        ([1, 10**6], {}, "outside the vocabulary"),
        (PROMPT, {"drafter": "oracle"}, "no drafter 'oracle'"),
        (PROMPT, {"drafter": "model"}, "--draft-model NAME"),
        (PROMPT, {"logit_bias": ((320, 1.0),)}, "no token 320 to bias"),
        (PROMPT, {"max_tokens": -3}, "0 or more, not -3"),
        (PROMPT, {"max_tokens": "x"}, "must be a whole number, not 'x'"),
        (PROMPT, {"stop": (5,)}, "`stop` must be a tuple of strings"),
        (PROMPT, {"stop": ("",)}, "must not be empty"),
    ],
)
def test_impossible_requests_are_refused(
    engine: Engine, prompt: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        engine.stream(prompt, Options(**options))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_context": 1025}, "from 1 to 1024"),
        ({"max_context": 10**6}, "from 1 to 1024"),
        ({"max_context": 16}, "raise --max-context"),
        ({"prefill_step_size": 0}, "must be 1 or more, not 0"),
    ],
)
def test_impossible_settings_of_a_model_are_refused(
    tiny_model_dir: Path, options: dict[str, int], sentence: str
) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as refused:
        akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), **options)).stream([1] * 17)  # type: ignore[arg-type]
    assert isinstance(refused.value, ContextOverflowError) is ("max_context" in options)


def test_a_suffix_follows_the_gap(engine: Engine) -> None:
    filled = "<|fim_prefix|>x\n<|fim_suffix|>b<|fim_middle|>a"
    expected = engine.generate(engine.tokenizer.encode(filled), Options(max_tokens=20))
    answer = engine.generate(FillRequest("x\na", "b"), Options(max_tokens=20))
    assert answer.token_ids == expected.token_ids
    assert answer.stats.prompt_tokens == expected.stats.prompt_tokens


def test_a_gap_in_a_long_file_is_cut_to_the_context(engine: Engine) -> None:
    request = FillRequest("before\n" * 1000, "after\n" * 1000)
    answer = engine.generate(request, Options(max_tokens=20))
    assert 900 < answer.stats.prompt_tokens <= engine.context_limit - 20


def test_typing_computes_only_what_was_typed(engine: Engine) -> None:
    lines = [f"line {number}\n" for number in range(60)]
    computed = []
    for typed in range(1, 12):
        prefix = "".join(lines[:40]) + "total = sum"[:typed]
        request = FillRequest(prefix, "\n" + "".join(lines[40:]))
        stats = engine.generate(request, Options(max_tokens=8)).stats
        computed.append(stats.prompt_tokens - stats.cached_tokens)
    assert max(computed[1:]) <= 2 < computed[0]


def test_a_request_ends_the_one_before_it(engine: Engine) -> None:
    alone = engine.generate(random_prompt(7), Options(max_tokens=30)).token_ids
    abandoned = engine.stream(random_prompt(6), Options(max_tokens=30))
    next(abandoned)
    assert engine.generate(random_prompt(7), Options(max_tokens=30)).token_ids == alone
    with pytest.raises(InvalidRequestError, match="Another request ended"):
        list(abandoned)
    again = engine.generate(random_prompt(6), Options(max_tokens=30))
    engine.reset()
    assert engine.generate(random_prompt(6), Options(max_tokens=30)).token_ids == again.token_ids


def test_a_cache_grows_for_a_longer_prompt(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, max_position_embeddings=8192)
    engine = akunu_py.load(str(folder))
    long = [i % 251 for i in range(2500)]
    engine.generate(long[:100], Options(max_tokens=1))
    first = engine.slots[0].capacity
    answer = engine.generate(long, Options(max_tokens=4))
    assert first < engine.slots[0].capacity
    assert answer.stats.cached_tokens == 100, "what was computed is kept"
    fresh = akunu_py.load(akunu_py.ModelOptions(str(folder), max_context=2504))
    assert fresh.generate(long, Options(max_tokens=4)).token_ids == answer.token_ids
    assert [slot.capacity for slot in fresh.slots] == [2504]


def test_memory_follows_the_answer_and_not_its_limit(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, max_position_embeddings=65536)
    engine = akunu_py.load(akunu_py.ModelOptions(str(folder), prompt_cache_bytes=1 << 30))
    prompt = [i % 251 for i in range(2000)]
    events = engine.stream(prompt, Options(max_tokens=32_768))
    for _ in range(3):
        next(events)
    assert engine.slots[0].capacity < 1.3 * len(prompt)
    events.close()


def test_an_error_of_a_forward_pass_goes_through_the_guard_of_its_model(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several machines, the guard tells from it that one is lost."""

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError("A rank is lost.") from error

    def fail(*_: Any) -> Any:
        raise RuntimeError("[ring] closed")

    stream = engine.stream(PROMPT, max_tokens=30)
    next(stream)
    monkeypatch.setattr(engine.model, "guard", guard)
    monkeypatch.setattr(engine.model, "forward", fail)
    with pytest.raises(RankError, match="A rank is lost"):
        list(stream)
