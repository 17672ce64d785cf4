"""Drafts of a model's own head: no answer changes, and it reads what a fresh prompt gives it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain as chained
from pathlib import Path
from random import Random

import mlx.core as mx
import numpy as np
import pytest

import akunu_py
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.batch import Batch, Member
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import Draft
from akunu_py.drafting.chain import Chain
from akunu_py.drafting.guessing import HeadGuesser
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Grammar, Options, Sampling
from akunu_py.planning.planner import FixedPlanner
from akunu_py.planning.row_class import RowClass
from akunu_py.sampling.sampler import Sampler
from tests.decoding.company import rounds_of as rounds_together
from tests.fakes import OracleDrafter, rounds_of
from tests.model.heads import CASES, load, random_head, write_model

LONGEST = 24
LIMITS = Limits(LONGEST, frozenset())
SAMPLED = Sampling(temperature=0.9, top_k=30, seed=5, repetition_penalty=1.2)


def prompt_of(number: int) -> list[int]:
    draw = Random(number)
    return [draw.randrange(60) for _ in range(9 + 5 * number)]


class LikelyCopies(OracleDrafter):
    """Says that its guesses are likelier than those of a head of which nothing is known."""

    def propose(self, limit: int) -> Draft:
        draft = super().propose(limit)
        return replace(draft, accept_probs=(0.9,) * len(draft))


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TargetModel]:
    @cache
    def make(name: str) -> TargetModel:
        case = CASES[name]
        folder = tmp_path_factory.mktemp("heads") / name
        return load(write_model(folder, case, random_head(case)))

    return make


def prefilled(model: TargetModel, prompt: list[int]) -> KVCache:
    held = model.make_cache(128)
    model.prefill(prompt[:-1], held)
    return held


def chain_of(model: TargetModel, sampling: Sampling, prompt: list[int], held: KVCache) -> Chain:
    assert model.head
    chain = Chain(HeadGuesser(model.head, Sampler(sampling, prompt)), AcceptanceRates())
    chain.begin(prompt, held.head)
    return chain


def plain(model: TargetModel, sampling: Sampling, prompt: list[int]) -> list[int]:
    held = prefilled(model, prompt)
    rounds = rounds_of(model, held, Sampler(sampling, prompt), prompt[-1], LIMITS)
    return [token for one in rounds for token in one.tokens]


def has_read(model: TargetModel, held: KVCache, tokens: list[int]) -> bool:
    """Whether the head holds what it reads of these tokens at once."""
    fresh = model.make_cache(len(tokens))
    model.prefill(tokens, fresh)
    mine, theirs = list[mx.array](), list[mx.array]()
    for one, rows in ((held, mine), (fresh, theirs)):
        assert one.head
        one.head.read()
        rows.extend(chained(*one.head.pairs.rows(0, len(tokens) - 1)))
    return all(np.allclose(own, other, atol=1e-3) for own, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("rows", [None, RowClass(3, ((0, 6), (16, 4)))], ids=["free", "padded"])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", CASES)
def test_guesses_among_copies_change_no_token_and_leave_no_gap(
    model_of: Callable[[str], TargetModel], name: str, sampling: Sampling, rows: RowClass | None
) -> None:
    """Copies are right, wrong in the middle, or none, so rounds end at every position."""
    model, prompt = model_of(name), prompt_of(1)
    wanted, held = plain(model, sampling, prompt), prefilled(model, prompt)
    copies = LikelyCopies(len(prompt), wanted, seed=2, error=0.3, silence=0.4)
    copies.begin(prompt)
    chain = chain_of(model, sampling, prompt, held)
    rounds = list(
        rounds_of(
            model,
            held,
            Sampler(sampling, prompt),
            prompt[-1],
            LIMITS,
            rows=rows,
            drafter=copies,
            chain=chain,
        )
    )
    assert [token for one in rounds for token in one.tokens] == wanted
    assert {one.draft.source for one in rounds} >= {"head", "oracle"}
    assert len({one.accepted for one in rounds if one.draft}) > 2
    assert has_read(model, held, [*prompt, *wanted][: held.length])


def test_pairs_wait_until_the_head_is_asked(model_of: Callable[[str], TargetModel]) -> None:
    """After plain steps, copies and a step back, too."""
    model, prompt = model_of("llama"), prompt_of(2)
    wanted, held = plain(model, Sampling(), prompt), prefilled(model, prompt)
    assert held.head
    read = held.head.pairs.length
    rounds = rounds_of(model, held, Sampler(Sampling()), prompt[-1], Limits(9, frozenset()))
    assert [token for one in rounds for token in one.tokens] == wanted[:9]
    assert held.head.pairs.length == read
    held.rollback(len(prompt) + 4)
    tokens = [*prompt, *wanted[:8]]
    model.prefill(tokens[held.length :], held)
    assert has_read(model, held, tokens)


def test_pairs_that_nobody_gave_are_zeros(model_of: Callable[[str], TargetModel]) -> None:
    """Also where another text had some, which a file of prompts must not keep."""
    model, prompt = model_of("llama"), prompt_of(2)
    held = prefilled(model, prompt)
    assert held.head
    held.rollback(4)
    held.head.is_wanted = False
    model.prefill(prompt[4:], held)
    held.head.fill(held.length)
    for keys_and_values in held.head.pairs.rows(4, held.length):
        assert not any(np.array(rows).any() for rows in keys_and_values)


def test_a_copy_of_a_cache_has_the_pairs_that_wait(model_of: Callable[[str], TargetModel]) -> None:
    model, prompt = model_of("llama"), prompt_of(2)
    held, other = prefilled(model, prompt), model.make_cache(128)
    rounds = rounds_of(model, held, Sampler(Sampling()), prompt[-1], Limits(9, frozenset()))
    tokens = [*prompt, *(token for one in rounds for token in one.tokens)]
    length = len(tokens) - 2
    other.copy(held, length)
    assert has_read(model, other, tokens[:length])


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "deepseek_v3", "glm4_moe"])
def test_heads_draft_in_company(model_of: Callable[[str], TargetModel], name: str) -> None:
    model, batch = model_of(name), Batch(model_of(name))
    assert batch.why_impossible is None
    prompts = [prompt_of(number) for number in range(3)]
    wanted = [plain(model, Sampling(), prompt) for prompt in prompts]
    members, caches = list[Member](), list[KVCache]()
    for prompt in prompts:
        held = prefilled(model, prompt)
        caches.append(held)
        chain = chain_of(model, Sampling(), prompt, held)
        session = DraftSession(planner=FixedPlanner(2), chain=chain, num_draft_tokens=2)
        target = ModelTarget(model, held, Sampler(Sampling()), 2)
        members.append(Member(target, session, prompt[-1], LIMITS))
    found: list[list[int]] = [[] for _ in prompts]
    guessed = 0
    while any(one.forward for one in members):
        going = [(one, own) for one, own in zip(members, found, strict=True) if one.forward]
        rounds = rounds_together(batch, [one for one, _ in going])
        for (_, own), outcome in zip(going, rounds, strict=True):
            guessed += outcome.drafted
            own.extend(outcome.tokens)
    assert found == wanted
    assert batch.forwards
    assert guessed > LONGEST
    for prompt, own, held in zip(prompts, found, caches, strict=True):
        assert has_read(model, held, [*prompt, *own][: held.length])


@pytest.fixture(scope="module")
def ember() -> Engine:
    return akunu_py.load(akunu_py.ModelOptions("ember", prompt_cache_bytes=100_000_000))


QUESTION, CODE, POEM = "What is the capital of France?", "def add(a, b):\n    return", "A poem."


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (QUESTION, Options(16)),
        (CODE, Options(16, num_draft_tokens=3)),
        (POEM, Options(12, exact=True)),
        (QUESTION, Options(16, temperature=0.8, top_p=0.9, seed=3)),
        (CODE, Options(16, repetition_penalty=1.3)),
        (POEM, Options(16, grammar=Grammar("regex", "[a-z ]{9,30}"))),
        (QUESTION, Options(16, stop=("e",))),
        (CODE, Options(16, logprobs=2)),
    ],
    ids=["planned", "fixed", "exact", "sampled", "penalized", "grammar", "stop", "logprobs"],
)
def test_the_bundled_head_changes_no_answer(ember: Engine, prompt: str, options: Options) -> None:
    ember.reset()
    wanted = ember.generate(prompt, replace(options, drafter="none"))
    for drafter in ("head", "auto"):
        for _ in range(2):  # from a new cache, and from one that holds the answer
            found = ember.generate(prompt, replace(options, drafter=drafter))
            assert found.token_ids == wanted.token_ids
            assert found.text == wanted.text


def test_a_guess_without_a_probability_is_a_guess(ember: Engine) -> None:
    bias = ((300, 1e39),)  # infinite in float32
    plain, drafted = (
        ember.generate("def mean(values):", max_tokens=6, drafter=drafter, logit_bias=bias)
        for drafter in ("none", "head")
    )
    assert drafted.text == plain.text


def test_the_bundled_head_is_mostly_right(ember: Engine) -> None:
    ember.reset()
    options = Options(60, drafter="head", num_draft_tokens=1)
    stats = ember.generate('def quicksort(items):\n    """Sort a list."""\n', options).stats
    assert stats.accepted > 0.5 * stats.drafted > 0


def test_prompts_on_disk_keep_what_the_head_has_read(tmp_path: Path) -> None:
    options = akunu_py.ModelOptions("ember", prompt_cache_dir=tmp_path / "prompts")
    prompt, draft = (
        "def f(x):\n    return x\n" * 12,
        Options(20, drafter="head", num_draft_tokens=2),
    )
    first = akunu_py.load(options)
    wanted = first.generate(prompt, draft)
    while first.save_prompts(closing=True):
        pass
    again = akunu_py.load(options).generate(prompt, draft)
    assert again.stats.cached_tokens > 50
    assert again.token_ids == wanted.token_ids
    assert again.stats.accepted > 0.8 * wanted.stats.accepted > 0


def test_a_prompt_that_the_head_has_not_read_is_kept_on_disk(tmp_path: Path) -> None:
    options = akunu_py.ModelOptions("ember", prompt_cache_file=tmp_path / "prompt")
    prompt = [5, *range(300, 380)]
    first = akunu_py.load(options)
    first.generate(prompt, Options(1, drafter="none"))
    while first.save_prompts(closing=True):
        pass
    again = akunu_py.load(options).generate([*prompt, 7], Options(6, drafter="head"))
    assert again.stats.cached_tokens > 70


def test_a_head_that_is_not_there_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No head is loaded"):
        akunu_py.load(str(tiny_model_dir)).generate("a", Options(2, drafter="head"))
    without = akunu_py.load(akunu_py.ModelOptions("ember", no_mtp=True))
    assert without.model.head is None
    assert without.generate("a", Options(3)).token_ids
