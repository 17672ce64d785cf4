"""`--max-kv-size`: layers keep the first tokens and the last ones, and drafts change nothing."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from akunu_py import Options, load
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import check_bounded, load_tokenizer
from akunu_py.model.target_model import TargetModel
from akunu_py.options import ModelOptions
from akunu_py.text.tokenizer import Tokenizer
from tests.architectures import UNLIKE_ITSELF, config, make_network, names, random_tokens
from tests.fakes import OracleDrafter
from tests.planning.curves import FLAT

SIZE = 20
PROMPT = random_tokens(2, 300)
"""Longer than the buffers, so that tokens between the first and the last ones are dropped."""
PLAIN = Options(8, drafter="none")
REFUSED = (
    *("mamba", "mamba2", "recurrent_gemma", "rwkv7"),  # no layer keeps all tokens
    *("deepseek_v32", "deepseek_v41", "glm_moe_dsa", "minimax_m3_vl"),  # they choose among all
    *("longcat_flash", "longcat_flash_ngram"),  # two caches a layer, as in those
    "afm7",  # it takes positions from the number of keys
)


pytestmark = pytest.mark.usefixtures("without_compiler")


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return load_tokenizer(str(tiny_model_dir))


def model_of(name: str, tokenizer: Tokenizer) -> TargetModel:
    network = make_network(name)
    check_bounded(network, SIZE)
    return TargetModel(
        network, tokenizer, config(name), name=name, layout="dense", max_kv_size=SIZE
    )


def engine_of(model: TargetModel, step: int) -> Engine:
    return Engine(model, find_backend(), calibrate=lambda *_: FLAT, prefill_step_size=step)


@pytest.mark.parametrize("name", sorted({*names()} - {*REFUSED} - {*UNLIKE_ITSELF}))
def test_steps_of_the_prefill_change_nothing(name: str, tokenizer: Tokenizer) -> None:
    """Neither do other forwards over several tokens: the windows are the same in all."""
    model = model_of(name, tokenizer)
    predictions = []
    for step in (97, 131):
        cache = model.make_cache(len(PROMPT) + 1)
        model.prefill(PROMPT, cache, step=step)
        predictions.append(model.forward(mx.array([5]), cache))
    one, other = predictions
    assert mx.allclose(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gemma3n", "gpt_oss", "qwen3_5"])
def test_drafts_do_not_change_the_text(name: str, tokenizer: Tokenizer) -> None:
    model = model_of(name, tokenizer)
    engine = engine_of(model, 131)
    plain = engine.generate(PROMPT, PLAIN).token_ids
    guesses = [token if at % 3 else token ^ 1 for at, token in enumerate(plain)]
    engine.add_drafter("oracle", lambda _: OracleDrafter(len(PROMPT), guesses))
    drafted = engine.generate(PROMPT, replace(PLAIN, drafter="oracle", num_draft_tokens=4))
    assert drafted.token_ids == plain
    assert drafted.stats.drafted or engine.notices


def test_what_is_answered_together_forgets_the_same(tiny_model_dir: Path) -> None:
    engine = load(ModelOptions(str(tiny_model_dir), max_kv_size=SIZE))
    prompts = [PROMPT[:60], PROMPT[:9], PROMPT[30:70]]
    for drafter in ("none", "ngram"):
        options = Options(12, drafter=drafter, num_draft_tokens=3)
        alone = [engine.generate(prompt, options).token_ids for prompt in prompts]
        together = engine.generate_batch(prompts, options)
        assert [one.token_ids for one in together] == alone


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bounded_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="omit --max-kv-size"):
        check_bounded(make_network(name), SIZE)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "glm4"])
def test_the_text_is_mlx_lms(name: str, tokenizer: Tokenizer) -> None:
    model = model_of(name, tokenizer)
    prompt, options = PROMPT[: SIZE - 5], replace(PLAIN, max_tokens=40)
    steps = generate_step(mx.array(prompt), model.network, max_tokens=40, max_kv_size=SIZE)
    assert engine_of(model, 48).generate(prompt, options).token_ids == [
        int(token) for token, _ in steps
    ]


def test_layers_that_a_model_does_not_use_stay_empty(tokenizer: Tokenizer) -> None:
    model = model_of("nemotron-nas", tokenizer)  # one of its attentions is a linear layer
    engine = engine_of(model, 131)
    engine.generate(PROMPT, PLAIN)
    engine.generate([*PROMPT[:299], *PROMPT], PLAIN)
    branch = [*PROMPT[:299], 1, 2]  # the checkpoint before it is copied into another slot
    answer = engine.generate(branch, PLAIN)
    assert answer.stats.cached_tokens == 299
    assert answer.token_ids == engine_of(model, 131).generate(branch, PLAIN).token_ids


def test_memory_is_bounded_and_the_user_is_told(tiny_model_dir: Path) -> None:
    model = load(ModelOptions(str(tiny_model_dir), max_kv_size=64)).model
    sizes = []
    for tokens in (400, 1_600):
        cache = model.make_cache(2_000)
        model.prefill([1] * tokens, cache, step=100)
        sizes.append(cache.nbytes)
    assert sizes[0] == sizes[1]
    assert model.kv_cache_form == "the first 4 and the last tokens, 64 in all"
