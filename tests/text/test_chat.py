"""Chats as prompts, by the model's template or another one."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.engine import Engine
from akunu_py.errors import AkunuError, InvalidRequestError, ModelLoadError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.text import sandbox
from akunu_py.text.tokenizer import ChatTemplate

OTHER = "{{ messages[0]['content'] }}|{{ enable_thinking }}|{{ mood }}"
CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def without_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["chat_template"]
    path.write_text(json.dumps(settings))


def rendered(folder: Path, template: ChatTemplate, settings: dict[str, Any] | None = None) -> str:
    options = akunu_py.ModelOptions(
        str(folder),
        chat_template=template.source,
        use_default_chat_template=template.use_default,
        chat_template_args=template.args,
    )
    tokenizer = load_target(options, find_backend()).tokenizer
    messages = [{"role": "user", "content": "Hi"}]
    return tokenizer.render_chat(messages, open_answer=True, settings=settings)


def test_it_replaces_the_models_own(copy: Path) -> None:
    assert rendered(copy, ChatTemplate(OTHER)).startswith("Hi|")
    (copy / "chat_template.jinja").write_text("from a file")  # transformers prefers it
    assert rendered(copy, ChatTemplate()) == "from a file"
    assert rendered(copy, ChatTemplate(OTHER)).startswith("Hi|")
    (copy / "chat_template.jinja").unlink()
    without_template(copy)
    assert rendered(copy, ChatTemplate(OTHER)).startswith("Hi|")


def test_one_of_the_model_that_never_ends_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "TrialProcess", partial(sandbox.TrialProcess, cpu_s=0.4))
    many = "{% for i in range(99999) %}"
    (copy / "chat_template.jinja").write_text(f"{many}{many}{'{% endfor %}' * 2}")
    with pytest.raises(ModelLoadError, match="--chat-template"):
        rendered(copy, ChatTemplate())
    assert rendered(copy, ChatTemplate(OTHER)).startswith("Hi|")


def test_the_default_is_for_models_without_one(copy: Path) -> None:
    usual = rendered(copy, ChatTemplate())
    assert rendered(copy, ChatTemplate(use_default=True)) == usual
    without_template(copy)
    with pytest.raises(InvalidRequestError, match="--use-default-chat-template"):
        rendered(copy, ChatTemplate())
    assert rendered(copy, ChatTemplate(use_default=True)) == CHATML
    assert rendered(copy, ChatTemplate(OTHER, use_default=True)).startswith("Hi|")


def test_variables_are_set_and_a_request_replaces_them(copy: Path) -> None:
    template = ChatTemplate(OTHER, args={"enable_thinking": False, "mood": "calm"})
    assert rendered(copy, template) == "Hi|False|calm"
    assert rendered(copy, template, {"enable_thinking": True}) == "Hi|True|calm"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ChatTemplate("{% if %}"), "not valid Jinja, in line 1: Expected an expression"),
        (ChatTemplate("{{ 1 }}\n{{ messages[ }}"), "not valid Jinja, in line 2"),
        (ChatTemplate("{{ 'a' * 10**10 }}"), "too much time or memory"),
        (ChatTemplate("{{ 'a' * 10**8 }}"), "too much time or memory"),
        (ChatTemplate("{{ 9**(9**9) }}"), "too much time or memory"),
        (ChatTemplate(args={"tools": []}), "cannot set `tools`"),
        (ChatTemplate(args={"messages": []}), "cannot set `messages`"),
        (ChatTemplate(args={"chat_template": "x"}), "cannot set `chat_template`"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    copy: Path, template: ChatTemplate, reason: str
) -> None:
    with pytest.raises(AkunuError, match=reason) as caught:
        rendered(copy, template)
    assert isinstance(caught.value, ModelLoadError | InvalidRequestError)
    assert "\n" not in str(caught.value)


def test_conversations_use_it(copy: Path) -> None:
    engine = akunu_py.load(
        akunu_py.ModelOptions(
            str(copy),
            chat_template=OTHER,
            chat_template_args={"mood": "x", "enable_thinking": True},
        )
    )
    said = [{"role": "user", "content": "Hi"}]
    assert engine.tokenizer.render_chat(said, open_answer=True) == "Hi|True|x"


def test_turns_are_rendered_by_the_models_template(engine: Engine) -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": " naïve 😀"},
        {"role": "user", "content": "and now?"},
    ]
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n naïve 😀<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tokens = engine.tokenizer.encode(engine.tokenizer.render_chat(said, open_answer=True))
    assert engine.tokenizer.decode(tokens) == text
