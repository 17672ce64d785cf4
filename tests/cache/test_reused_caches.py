"""What is reused is what a fresh engine computes, whatever ended the requests before."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from akunu_py import Options
from akunu_py.cache.layers import LayerCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.cache.states import make_recordable
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_tokenizer
from tests.architectures import COMMON, VOCABULARY, make_model, make_network, random_tokens
from tests.planning.curves import FLAT

PLAIN = Options(12, drafter="none")


class Script:
    """Drafts the given tokens after that many emitted ones, and otherwise nothing."""

    def __init__(self, drafts: dict[int, Sequence[int]]) -> None:
        self._drafts = drafts
        self._emitted = 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._emitted = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._emitted += len(tokens)

    def propose(self, limit: int) -> Draft:
        tokens = tuple(self._drafts.get(self._emitted, ()))[:limit]
        return Draft(tokens, "script", len(tokens)) if tokens else NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass


pytestmark = pytest.mark.usefixtures("without_compiler")
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def make_engine(tiny_model_dir: Path) -> MakeEngine:
    tokenizer, backend = load_tokenizer(str(tiny_model_dir)), find_backend()

    def make(name: str, **options: int) -> Engine:
        return Engine(
            make_model(name, tokenizer),
            backend,
            calibrate=lambda *_: FLAT,
            prefill_step_size=16,
            **options,  # type: ignore[arg-type]
        )

    return make


def drafted(engine: Engine, prompt: list[int], drafts: dict[int, Sequence[int]], most: int) -> None:
    engine.add_drafter("script", lambda _: Script(drafts))
    engine.generate(prompt, Options(most, drafter="script", num_draft_tokens=30))


def as_fresh(engine: Engine, prompt: list[int]) -> list[int]:
    engine.reset()
    return engine.generate(prompt, PLAIN).token_ids


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next"])
def test_what_a_rejected_draft_recorded_is_not_used_later(
    name: str, make_engine: MakeEngine
) -> None:
    engine, prompt = make_engine(name), random_tokens(5, 20)
    answer = as_fresh(engine, prompt)
    engine.reset()
    wrong = [*answer[:2], *((token + 1) % VOCABULARY for token in answer[2:5])]
    drafted(engine, prompt, {0: wrong}, 6)  # plain steps then end where the draft ended
    other = [*prompt, *answer[:4], 99, 98]
    assert engine.generate(other, PLAIN).token_ids == as_fresh(engine, other)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "nemotron_h"])
def test_a_copy_inside_an_accepted_draft_has_the_right_states(
    name: str, make_engine: MakeEngine
) -> None:
    engine, prompt = make_engine(name), random_tokens(5, 3)
    answer = engine.generate(prompt, Options(31, drafter="none")).token_ids
    engine.reset()
    drafted(engine, prompt, {0: answer[:30]}, 31)
    other = [*prompt, *answer[:5], 99, 98]
    assert engine.generate(other, PLAIN).token_ids == as_fresh(engine, other)


@pytest.mark.parametrize("name", ["lfm2", "gemma3_text"])
def test_making_room_may_drop_the_checkpoint_to_copy(name: str, make_engine: MakeEngine) -> None:
    prompt = random_tokens(5, 700)

    def used(**options: int) -> Engine:
        engine = make_engine(name, **options)
        for length in (100, 110, 120, 400, 700):
            engine.generate(prompt[:length], Options(1, drafter="none"))
        engine.generate(random_tokens(9, 600), Options(1, drafter="none"))
        return engine

    held = sum(slot.nbytes for slot in used().slots)
    engine = used(prompt_cache_bytes=held + 1000)
    other = [*prompt[:115], *random_tokens(7, 20)]
    assert engine.generate(other, PLAIN).token_ids == as_fresh(engine, other)


def test_a_restored_window_does_not_write_into_its_checkpoint(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMON, "sliding_window", 64)
    engine, prompt = make_engine("gemma3_text"), random_tokens(5, 40)
    once = Options(1, drafter="none")
    engine.generate(prompt, once)  # a checkpoint at 39, shorter than the window
    engine.generate([*prompt, *random_tokens(6, 500)], once)
    branch = [*prompt[:39], 77, 78]
    interrupted = engine.stream(branch, replace(once, reports_progress=True))
    next(interrupted)  # nothing is computed yet
    interrupted.close()
    engine.generate([*prompt[:30], *random_tokens(8, 9)], once)
    other = [*prompt[:39], 50, 51, 52]
    scored = replace(PLAIN, logprobs=0)
    again = engine.generate(other, scored)
    assert again.stats.cached_tokens == 39
    engine.reset()
    fresh = [one.logprob for one in engine.generate(other, scored).logprobs]
    assert [one.logprob for one in again.logprobs] == pytest.approx(fresh, abs=1e-3)


def test_an_interrupted_growth_leaves_nothing_to_reuse(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt = make_engine("llama"), random_tokens(5, 400)
    longer = [*prompt, *random_tokens(6, 200)]
    engine.generate(prompt, Options(1, drafter="none"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LayerCache, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(longer, PLAIN)
    again = engine.generate(longer, PLAIN)
    assert again.stats.cached_tokens == 0
    assert again.token_ids == as_fresh(engine, longer)


@pytest.mark.parametrize(("name", "grown"), [("qwen3", 1), ("llama", 0)])
def test_an_answer_that_gets_no_more_memory_keeps_what_it_computed(
    name: str, grown: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of its layers have grown then."""
    engine, prompt = make_engine(name), random_tokens(5, 505)
    copy, left = LayerCache.copy, iter(range(grown))

    def copy_one(own: LayerCache, other: LayerCache, tokens: int) -> None:
        if next(left, None) is None:
            raise MemoryError
        copy(own, other, tokens)

    answer = Options(40, drafter="none")
    with monkeypatch.context() as patch:
        patch.setattr(LayerCache, "copy", copy_one)
        with pytest.raises(MemoryError):
            engine.generate(prompt, answer)
    again = engine.generate(prompt, answer)
    assert again.stats.cached_tokens == 504
    engine.reset()
    assert again.token_ids == engine.generate(prompt, answer).token_ids


def test_states_are_not_counted_for_every_token(make_engine: MakeEngine) -> None:
    """A short conversation with checkpoints stays beside a long prompt if both fit."""
    engine = make_engine("qwen3_next", max_context=1024)
    engine.generate(random_tokens(1, 20), Options(1, drafter="none"))
    engine.generate(random_tokens(2, 900), Options(1, drafter="none"))
    both = sum(slot.nbytes for slot in engine.slots)
    engine = make_engine("qwen3_next", max_context=1024, prompt_cache_bytes=both + 100_000)
    for turn in range(4):
        engine.generate(random_tokens(1, 20 + 10 * turn), Options(1, drafter="none"))
    engine.generate(random_tokens(2, 900), Options(1, drafter="none"))
    goes_on = engine.generate(random_tokens(1, 70), Options(1, drafter="none"))
    assert goes_on.stats.cached_tokens in (49, 50)


def test_models_with_code_of_their_own_are_left_alone() -> None:
    network = make_network("qwen3_next")
    layer = type(network.layers[0])
    elsewhere = type("Layer", (layer,), {"__module__": "nowhere.to.be.found"})
    network.layers[0].__class__ = elsewhere
    make_recordable(network)
    logits = network(mx.array([[1, 2, 3]]), cache=make_kv_cache(network, 8).layers)
    assert logits.shape == (1, 3, VOCABULARY)


@pytest.mark.parametrize("after", [2, 6], ids=["in the prefill", "in the answer"])
@pytest.mark.parametrize(
    ("name", "error"),
    [("llama", KeyboardInterrupt), ("qwen3_next", MemoryError), ("gemma3_text", ValueError)],
)
def test_a_broken_forward_leaves_no_trace(
    name: str,
    error: type[BaseException],
    after: int,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, prompt = make_engine(name), random_tokens(5, 60)
    options = Options(12, drafter="ngram", num_draft_tokens=3)
    expected = engine.generate(prompt, options).token_ids
    engine.reset()
    layer = engine.model.network.layers[1]
    whole = type(layer).__call__
    left = iter(range(after))

    def interrupted(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        if self is layer and next(left, None) is None:
            raise error
        return whole(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(layer), "__call__", interrupted)
        with pytest.raises(error):
            engine.generate(prompt, options)
    assert engine.slots == ()
    assert engine.generate(prompt, options).token_ids == expected
