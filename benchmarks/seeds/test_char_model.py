"""A character model: trained once, found again, and loaded as any other model."""

import json
from pathlib import Path

import pytest
from mlx.utils import tree_flatten

import akunu_py
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.package import CACHE_VARIABLE
from benchmarks.seeds import char_model
from benchmarks.seeds.char_model import CharModel, Recipe, find_char_model, train, validation_loss
from benchmarks.seeds.char_text import MIN_CHARACTERS, CharText, read_char_text
from benchmarks.seeds.conftest import TEXT, TINY


class TestText:
    def test_the_default_text_is_part_of_python(self) -> None:
        text = read_char_text(None)
        assert len(text.content) > 100_000
        assert "statement" in text.training

    def test_a_file_is_split_and_encoded_by_its_characters(self, tmp_path: Path) -> None:
        path = tmp_path / "poem.txt"
        path.write_text("ab\n" * MIN_CHARACTERS, encoding="utf-8")
        text = read_char_text(path)
        assert (text.name, text.alphabet) == ("poem.txt", ["\n", "a", "b"])
        assert text.training + text.validation == text.content
        assert len(text.training) == pytest.approx(0.9 * len(text.content), abs=1)
        assert text.encode("ba\n") == [2, 1, 0]

    def test_an_unusable_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "text"
        with pytest.raises(InvalidRequestError, match=r"cannot be read: No such file"):
            read_char_text(path)
        path.write_text("short")
        with pytest.raises(InvalidRequestError, match="has 5 characters, and a model needs"):
            read_char_text(path)
        path.write_bytes(b"\xff\xfe\x00" * MIN_CHARACTERS)
        with pytest.raises(InvalidRequestError, match="is not text in UTF-8"):
            read_char_text(path)


def test_the_recipe_has_the_published_size() -> None:
    network = train(TEXT, Recipe(steps=0))
    sizes = sum(array.size for _, array in tree_flatten(network.parameters()))
    embeddings = 2 * 32 * len(TEXT.alphabet)
    assert sizes - embeddings + 2 * 32 * 65 == pytest.approx(56_769, rel=0.02)


def test_training_lowers_the_loss_and_reports_its_progress(trained: CharModel) -> None:
    news: list[tuple[int, int]] = []
    untrained = train(TEXT, Recipe(**{**vars(TINY), "steps": 2}), lambda *now: news.append(now))
    assert news == [(1, 2), (2, 2)]
    assert trained.validation_loss < validation_loss(untrained, TEXT, TINY) - 0.1


def test_a_trained_model_is_found_again(
    trained: CharModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(char_model, "train", None)
    assert find_char_model(TEXT, TINY) == trained
    assert trained.folder.stat().st_mode & 0o077 == 0
    with pytest.raises(TypeError):
        find_char_model(CharText("other", TEXT.content + "a"), TINY)


def test_training_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_char_model(TEXT, TINY, interrupt)
    assert not any((tmp_path / "char-models").iterdir())


def test_a_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(blocked))
    with pytest.raises(InvalidRequestError, match=f"another cache folder in {CACHE_VARIABLE}"):
        find_char_model(TEXT, TINY)


def test_it_loads_and_its_tokens_are_characters(trained: CharModel) -> None:
    engine = akunu_py.load(str(trained.folder))
    assert engine.tokenizer.encode("cab é\n") == TEXT.encode("cab é\n")
    assert engine.tokenizer.decode(TEXT.encode("cab é\n")) == "cab é\n"
    assert not engine.tokenizer.end_tokens
    answer = engine.generate("abab", Options(20, temperature=1.0, seed=1))
    assert len(answer.text) == 20
    assert set(answer.text) <= set(TEXT.alphabet)
    facts = json.loads((trained.folder / "training.json").read_text())
    assert facts["steps"] == trained.steps == TINY.steps
