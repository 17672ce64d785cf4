"""Conversations whose earlier turns are not computed again, in memory and after a restart."""

from pathlib import Path
from random import Random
from threading import Event as Flag

import pytest

import akunu_py
from akunu_py import Options, worker
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_tokenizer
from akunu_py.model.target_model import TargetModel
from akunu_py.text.tokenizer import Tokenizer
from akunu_py.worker import EngineWorker
from tests.architectures import make_model

pytestmark = pytest.mark.usefixtures("without_compiler")
NAMES = ("llama", "qwen3_next", "gemma4_text")
START, END = 126, 127  # the marks of a turn
THOUGHT = 12
"""How many tokens of an answer the template drops in later turns."""


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    tokenizer = load_tokenizer(str(tiny_model_dir))
    tokenizer.special_tokens = frozenset({START, END})
    return tokenizer


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> TargetModel:
    return make_model(request.param, tokenizer)


def engine_of(model: TargetModel, folder: Path | None = None) -> Engine:
    store = PromptStore(folder, model.fingerprint, model.sample_cache()) if folder else None
    return Engine(model, find_backend(), prompt_store=store, prefill_step_size=64)


def close(engine: Engine) -> None:
    engine.save_prompts(closing=True)


class Talk:
    """A conversation in tokens, whose template drops how earlier answers begin."""

    def __init__(self, seed: int = 2) -> None:
        self._draw = Random(seed)
        self._seen: list[int] = []
        self.prompt: list[int] = []
        self.changed_from = 0
        """From where on the prompt differs from the text before."""

    def ask(self, length: int = 40) -> list[int]:
        said = [self._draw.randrange(START) for _ in range(length)]
        self.prompt = [*self._seen, START, *said, END, START, 97]
        return self.prompt

    def answer(self, tokens: list[int]) -> None:
        self.changed_from = len(self.prompt)
        self._seen = [*self.prompt, *tokens[THOUGHT:], END]


OPTIONS = Options(max_tokens=20, drafter="none")


def test_turns_compute_what_is_new_and_what_follows_the_last_checkpoint(
    model: TargetModel, tmp_path: Path
) -> None:
    talk, fresh, stays = Talk(), engine_of(model), engine_of(model)
    for turn in range(4):
        prompt, restarted = talk.ask(), engine_of(model, tmp_path)
        fresh.reset()
        expected = fresh.generate(prompt, OPTIONS).token_ids
        for engine in (stays, restarted):
            answer = engine.generate(prompt, OPTIONS)
            assert answer.token_ids == expected
            # The answer's turn begins two tokens before the first one that changed.
            assert not turn or answer.stats.cached_tokens >= talk.changed_from - 2
        talk.answer(expected)
        close(restarted)


def test_a_restart_goes_on_after_the_answer(model: TargetModel, tmp_path: Path) -> None:
    engine = engine_of(model, tmp_path)
    first = [3 * i % START for i in range(200)]
    answer = engine.generate(first, OPTIONS)
    close(engine)
    engine = engine_of(model, tmp_path)
    second = [*first, *answer.token_ids, *first[:30]]
    again = engine.generate(second, OPTIONS)
    assert again.stats.cached_tokens in (219, 220), "all that was computed"
    assert again.token_ids == engine_of(model).generate(second, OPTIONS).token_ids
    engine.reset()
    assert engine.generate(second, OPTIONS).stats.cached_tokens >= 219, "what is on disk stays"


def test_other_weights_take_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    prompt = [3 * i % START for i in range(200)]
    engine = engine_of(make_model("llama", tokenizer), tmp_path)
    engine.generate(prompt, OPTIONS)
    close(engine)
    same, other = make_model("llama", tokenizer), make_model("llama", tokenizer)
    other.network.model.norm.weight = other.network.model.norm.weight + 1e-4
    assert engine_of(other, tmp_path).generate(prompt, OPTIONS).stats.cached_tokens == 0
    assert engine_of(same, tmp_path).generate(prompt, OPTIONS).stats.cached_tokens == 199


class TestWorker:
    """Prompts are written when nothing else is to do, and at the end."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(worker, "_IDLE_S", 3600.0)
        return tmp_path / "prompts"

    def test_closing_writes(self, tiny_model_dir: Path, folder: Path) -> None:
        prompt = list(range(200))
        for cached in (0, 199):
            load = EngineWorker(
                lambda: akunu_py.load(
                    akunu_py.ModelOptions(str(tiny_model_dir), prompt_cache_dir=folder)
                )
            )
            answer = list(load.stream(prompt, Options(max_tokens=1)))
            assert answer[-1].stats.cached_tokens == cached
            assert load.close(0.0) or load.close(60)

    def test_a_file_keeps_one_conversation(self, tiny_model_dir: Path, folder: Path) -> None:
        folder.mkdir()
        file = folder / "talk"
        for cached in (0, 199):
            engine = akunu_py.load(
                akunu_py.ModelOptions(str(tiny_model_dir), prompt_cache_file=file)
            )
            answer = engine.generate(list(range(200)), Options(max_tokens=1))
            assert answer.stats.cached_tokens == cached
            close(engine)
        assert list(folder.iterdir()) == [file]

    def test_a_folder_and_a_file_exclude_each_other(self, folder: Path) -> None:
        with pytest.raises(InvalidRequestError, match="not both"):
            akunu_py.load(
                akunu_py.ModelOptions(prompt_cache_dir=folder, prompt_cache_file=folder / "talk")
            )

    def test_an_idle_worker_writes(
        self, tiny_model_dir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "_IDLE_S", 0.0)
        saved = Flag()

        save = Engine.save_prompts

        def watched(engine: Engine, *, closing: bool = False) -> bool:
            more = save(engine, closing=closing)
            if not more and list(folder.iterdir()):
                saved.set()
            return more

        monkeypatch.setattr(Engine, "save_prompts", watched)
        asked = akunu_py.ModelOptions(str(tiny_model_dir), prompt_cache_dir=folder)
        own = EngineWorker(lambda: akunu_py.load(asked))
        list(own.stream(list(range(200)), Options(max_tokens=1)))
        assert saved.wait(60)
        assert own.close(60)


def test_a_folder_that_cannot_be_made_is_a_sentence(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="Prompts cannot be kept in"):
        akunu_py.load(
            akunu_py.ModelOptions(str(tiny_model_dir), prompt_cache_dir=tmp_path / "file")
        )
