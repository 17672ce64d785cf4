"""Every architecture of mlx-lm: drafts, rollbacks and reused prefixes leave its tokens alone.

Each one runs with tiny random weights through the engine as users call it. A scripted drafter knows
the answer and is wrong at every position of a draft in turn. Contexts exceed every window, and long
drafts too, so that a rejection takes back more than a window.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from akunu_py.cache.layers import SLACK
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.drafting.base import Draft
from akunu_py.engine import Engine
from akunu_py.events import Completion
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_tokenizer
from akunu_py.options import Options, Sampling
from akunu_py.text.tokenizer import Tokenizer
from tests.architectures import (
    IN_TURNS,
    UNLIKE_ITSELF,
    VOCABULARY,
    WINDOW,
    cache_kinds,
    make_model,
    make_network,
    names,
    random_tokens,
)
from tests.fakes import OracleDrafter
from tests.models_page import PAGE, models_page
from tests.planning.curves import FLAT

PREFILL_STEP = 2 * WINDOW + 5
GREEDY = Options(12, drafter="script", num_draft_tokens=4)
SHORTER = replace(GREEDY, max_tokens=6)
SAID = 5
"""How many tokens of an answer the next turn repeats."""
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=11)
OPTIONS = {
    "exact and sampled": replace(GREEDY, exact=True).sampled_as(SAMPLED),
    "longer than a window": replace(GREEDY, num_draft_tokens=WINDOW + 4),
}
PROMPT = random_tokens(5, 4 * WINDOW)
LONG_PROMPT = random_tokens(6, WINDOW + SLACK - 8)
"""Its answer outgrows the buffers of a window, so the window moves to their front."""


class ScriptedDrafter(OracleDrafter):
    """Knows the answer; each draft is wrong at another position, and one in a cycle nowhere."""

    def propose(self, limit: int) -> Draft:
        right = super().propose(limit)
        wrong_at = 3 * len(self.verified) % (limit + 1)  # 3 keeps neighbours apart
        tokens = [
            (token + (position == wrong_at)) % VOCABULARY
            for position, token in enumerate(right.tokens)
        ]
        return replace(right, tokens=tuple(tokens))


class Subject:
    """An engine on a tiny network of one architecture, and what plain decoding answers."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.name = name
        model = make_model(name, tokenizer)
        self.network = model.network
        self.engine = Engine(
            model, find_backend(), calibrate=lambda *_: FLAT, prefill_step_size=PREFILL_STEP
        )
        self.engine.add_drafter("script", lambda _: self.script)
        self.script = ScriptedDrafter(0, [])
        self.speculates = not any("Speculation is off" in line for line in self.engine.notices)
        self._answers: dict[tuple[tuple[int, ...], Options], Completion] = {}

    def plain(self, prompt: Sequence[int], options: Options) -> Completion:
        """The answer without drafts, computed once, from an empty cache."""
        exact = self.is_in_blocks(options)
        plain = Options(options.max_tokens, drafter="none", logprobs=0, exact=exact).sampled_as(
            options
        )
        if (key := (tuple(prompt), plain)) not in self._answers:
            self.engine.reset()
            self._answers[key] = self.engine.generate(prompt, plain)
        return self._answers[key]

    def next_turn(self) -> list[int]:
        """The prompt, its answer, and some more."""
        answer = self.plain(PROMPT, GREEDY).token_ids
        return [*PROMPT, *answer[:SAID], *random_tokens(2, 4)]

    def is_in_blocks(self, options: Options) -> bool:
        """Whether all forwards of an answer have the same shape."""
        return self.engine.costs.rows_of(options) is not None

    def write_script(self, prompt: Sequence[int], options: Options) -> None:
        self.script = ScriptedDrafter(len(prompt), self.plain(prompt, options).token_ids)

    def check(self, prompt: Sequence[int], options: Options) -> Completion:
        """The drafted answer, on what the caches hold, which must be the plain one."""
        expected = self.plain(prompt, options)
        self.write_script(prompt, options)
        answer = self.engine.generate(prompt, replace(options, logprobs=0))
        assert answer.token_ids == expected.token_ids
        for own, other in zip(answer.logprobs, expected.logprobs, strict=True):
            tolerance = 0.0 if self.is_in_blocks(options) else 5e-3
            assert own.logprob == pytest.approx(other.logprob, rel=0, abs=tolerance)
        assert bool(answer.stats.drafted) == self.speculates
        return answer


pytestmark = pytest.mark.usefixtures("without_compiler")


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return load_tokenizer(str(tiny_model_dir))


@pytest.fixture(scope="module", params=names())
def subject(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Subject:
    return Subject(request.param, tokenizer)


def test_plain_decoding_is_mlx_lms_own(subject: Subject) -> None:
    if subject.name in UNLIKE_ITSELF:
        pytest.skip(UNLIKE_ITSELF[subject.name])
    steps = generate_step(
        mx.array(PROMPT),
        subject.network,
        max_tokens=GREEDY.max_tokens,
        prefill_step_size=PREFILL_STEP,
    )
    tokens = [int(token) for token, _ in steps]
    assert subject.plain(PROMPT, GREEDY).token_ids == tokens
    assert len(set(tokens)) > 1, "a text that repeats a token shows little"


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_drafts_change_nothing(subject: Subject, options: Options) -> None:
    subject.check(PROMPT, options)
    if subject.speculates and not options.exact:
        lengths = {accepted for _, accepted in subject.script.verified}
        assert len(lengths) >= 3, "drafts must be rejected at different positions"


def test_reused_prefixes_change_nothing(subject: Subject) -> None:
    if not subject.speculates:
        pytest.skip("Where a prompt is cut into forwards changes its text.")
    others = [(subject.next_turn(), SHORTER), ([*PROMPT[:23], *random_tokens(3, 9)], SHORTER)]
    for prompt, options in others:
        subject.plain(prompt, options)
    subject.engine.reset()
    subject.write_script(PROMPT, GREEDY)
    broken_off = subject.engine.stream(PROMPT, GREEDY)
    for _ in range(2):
        next(broken_off)
    broken_off.close()
    for prompt, options in [(PROMPT, GREEDY), *others, (PROMPT, GREEDY)]:
        subject.check(prompt, options)


def test_windows_that_move_change_nothing(subject: Subject) -> None:
    kinds = cache_kinds(subject.network)
    if not kinds & {"RotatingKVCache", "ChunkedKVCache"}:
        pytest.skip("It has no window.")
    subject.plain(LONG_PROMPT, GREEDY)
    shorter = [*LONG_PROMPT[: SLACK // 2], *PROMPT]
    subject.plain(shorter, GREEDY)
    subject.engine.reset()
    for prompt in (LONG_PROMPT, shorter, LONG_PROMPT):
        subject.check(prompt, GREEDY)


def test_company_changes_nothing(subject: Subject) -> None:
    if not subject.speculates:
        pytest.skip("Where a prompt is cut into forwards changes its text.")
    prompts = [PROMPT, PROMPT[:9]]
    answers = [subject.plain(prompt, GREEDY).token_ids for prompt in prompts]
    subject.engine.reset()
    scripts = map(ScriptedDrafter, map(len, prompts), answers)
    subject.engine.add_drafter("scripts", lambda _: next(scripts))
    forwards = subject.engine.batch.forwards
    found = subject.engine.generate_batch(prompts, replace(GREEDY, drafter="scripts"))
    assert [completion.token_ids for completion in found] == answers
    is_batched = subject.engine.batch.why_impossible is None
    assert (subject.engine.batch.forwards > forwards) is is_batched
    assert is_batched is (subject.name not in IN_TURNS)


def test_a_restart_goes_on_from_the_disk(subject: Subject, tmp_path: Path) -> None:
    if not subject.speculates:
        pytest.skip("Where a prompt is cut into forwards changes its text.")

    def start() -> Engine:
        store = PromptStore(tmp_path, model.fingerprint, model.sample_cache())
        return Engine(model, find_backend(), prefill_step_size=PREFILL_STEP, prompt_store=store)

    model, prompt = subject.engine.model, subject.next_turn()
    before = start()
    before.generate(PROMPT, Options(SAID, drafter="none"))
    before.save_prompts(closing=True)
    again = start().generate(prompt, replace(SHORTER, drafter="none"))
    assert again.stats.cached_tokens >= len(PROMPT) + SAID - 1
    assert again.token_ids == subject.plain(prompt, SHORTER).token_ids


@pytest.mark.parametrize("name", UNLIKE_ITSELF)
def test_what_is_said_to_be_unlike_itself_is(name: str) -> None:
    network = make_network(name)
    cache = make_prompt_cache(network)
    steps = mx.concatenate([network(mx.array([[token]]), cache=cache)[0] for token in PROMPT])
    at_once = network(mx.array([PROMPT]), cache=make_prompt_cache(network))[0]
    assert not mx.allclose(mx.maximum(steps, -99), mx.maximum(at_once, -99), atol=0.05)


def test_the_page_about_models_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == models_page(), "python -m tests.models_page"
