"""The options: what they mean, which are refused, and that parsing loads no library."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from akunu_py.__main__ import main
from akunu_py.cli.parser import COMMANDS, parse
from akunu_py.cli.settings import (
    ChatSettings,
    CostSettings,
    DoctorSettings,
    GenerateSettings,
    ReplaySettings,
    SpeedupSettings,
)
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Grammar, ModelOptions, Options
from akunu_py.package import __version__
from tests.processes import run

HEAVY = {
    "mlx", "mlx_lm", "numpy", "transformers", "tokenizers", "prompt_toolkit", "rich",
    "importlib.metadata", "asyncio", "llguidance",
}  # fmt: skip


def generate_settings(*words: str) -> GenerateSettings:
    settings = parse(["generate", "-p", "x", *words]).settings
    assert isinstance(settings, GenerateSettings)
    return settings


def chat_settings(*words: str) -> ChatSettings:
    settings = parse(["chat", *words]).settings
    assert isinstance(settings, ChatSettings)
    return settings


def test_a_schema_is_read_from_its_file(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}', encoding="utf-8")
    options = generate_settings("--schema", str(schema)).options
    assert options.grammar == Grammar("json_schema", '{"type": "integer"}')

    schema.write_bytes(b"\xff")
    for path, said in [(schema, "not UTF-8"), (tmp_path, "cannot be read")]:
        with pytest.raises(InvalidRequestError, match=said):
            generate_settings("--schema", str(path))


@pytest.mark.parametrize(
    "words", ["generate -p x --schema", "doctor --report", "bench speedup --data", "bench replay"]
)
def test_the_file_of_an_unknown_user_and_one_with_a_null_character_are_refused(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert main([*words.split(), "~nosuchuser/x.svg"]) == 2
    printed = capsys.readouterr().err
    assert "~nosuchuser" in printed
    assert printed.count("\n") == 1
    with pytest.raises(InvalidRequestError, match="cannot contain a null character"):
        parse([*words.split(), "a\0b.svg"])


def test_the_defaults_are_those_of_the_python_api() -> None:
    settings = generate_settings()
    assert settings.options == Options()
    assert settings.model.name == "ember"
    assert chat_settings().options == Options(1024)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("-m 5", Options(max_tokens=5)),
        ("--max-tokens -1", Options(max_tokens=None)),
        ("--max-tokens 0", Options(max_tokens=0)),
        ("--stop a --stop b", Options(stop=("a", "b"))),
        ("--temp 0.7 --seed 3", Options(temperature=0.7, seed=3)),
        ("--top-p 0.9 --top-k 4", Options(top_p=0.9, top_k=4)),
        ("--min-p 0.1", Options(min_p=0.1)),
        (
            "--temp 1 --xtc-probability 0.5 --xtc-threshold 0.2",
            Options(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.2),
        ),
        ("--drafter none", Options(drafter="none")),
        ("--no-speculate", Options(drafter="none")),
        ("--num-draft-tokens 8", Options(num_draft_tokens=8)),
        ("--exact", Options(exact=True)),
        ("--no-exact", Options(exact=False)),
        ("--draft-model a/b", Options()),
        ("--draft-model a/b --drafter auto", Options(drafter="auto")),
        ("--draft-model a/b --drafter model", Options(drafter="model")),
        ("--draft-model a/b --drafter ngram", Options(drafter="ngram")),
        (
            "--repetition-penalty 1.1 --repetition-context-size 9",
            Options(repetition_penalty=1.1, repetition_context_size=9),
        ),
        (
            "--presence-penalty 0.5 --frequency-penalty -1",
            Options(presence_penalty=0.5, frequency_penalty=-1),
        ),
        (
            "--logit-bias 5=-2.5 --logit-bias 6=1",
            Options(logit_bias=((5, -2.5), (6, 1.0))),
        ),
    ],
)
def test_options_are_spelled_as_mlx_lm_spells_them(words: str, options: Options) -> None:
    assert generate_settings(*words.split()).options == options


def test_options_of_one_command() -> None:
    settings = generate_settings("--suffix", "end", "--json", "--verbose")
    assert (settings.prompt, settings.suffix, settings.as_json) == ("x", "end", True)
    assert generate_settings("--chat", "--system-prompt", "be brief").system_prompt == "be brief"
    assert chat_settings("--show-drafts", "--system-prompt", "be brief").show_drafts
    model = chat_settings("--model", "a/b", "--weights", "dense", "--max-context", "9").model
    assert (model.name, model.weights, model.max_context) == ("a/b", "dense", 9)


def test_loading_is_spelled_as_mlx_lm_spells_it(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    words = ["--adapter-path", "a b", "--trust-remote-code", "--use-default-chat-template"]
    words += ["--chat-template-args", '{"enable_thinking": false}']
    for template in (str(file), "{{ messages }}"):
        model = chat_settings(*words, "--chat-template", template).model
        assert model == ModelOptions(
            adapter_path="a b",
            trust_remote_code=True,
            chat_template="{{ messages }}",
            use_default_chat_template=True,
            chat_template_args={"enable_thinking": False},
            remembers=True,
        )
        once = replace(model, remembers=False)
        assert generate_settings("--chat", *words, "--chat-template", template).model == once
        for command, expected in (("serve", model), ("bench speedup", once)):
            asked = [*command.split(), *words, "--chat-template", template]
            assert parse(asked).settings.model == expected
    assert chat_settings("--chat-template", "").model.chat_template is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("generate", "generate needs --prompt"),
        ("generate --propmt x", "did you mean --prompt?"),
        ("generate -p x --max-token 3", "did you mean --max-tokens?"),
        ("generate -p x --max 4", "did you mean --max-context or --max-kv-size or --max-tokens?"),
        ("chat --max-tokens 0", "1 or more, or -1 for no limit"),
        ("serve --max-tokens -5", "--max-tokens must be -1 or more"),
        (
            "chat --no-speculate --drafter auto",
            "not allowed with argument --no-speculate",
        ),
        ("chat --no-speculate --num-draft-tokens 4", "omit --num-draft-tokens 4"),
        ("generate -p x --max-tokens many", "'many' is not a whole number"),
        ("generate -p x --max-tokens -2", "0 or more, or -1 for no limit, not -2"),
        ("generate -p x --temp -1", "--temp must be from 0 to 1000, not -1"),
        ("generate -p x --temp warm", "'warm' is not a number"),
        ("serve --cors a.example", "'a.example' is not an origin such as https://example.com"),
        ("generate -p x --num-draft-tokens -1", "from 0 to 1024"),
        ("generate -p x --max-context 0", "--max-context must be 1 or more"),
        ("generate -p x --drafter nobody", "'nobody' is not one of"),
        ("generate -p x --stop=", "must not be empty"),
        ("generate -p x --suffix y --chat", "omit --chat"),
        ("generate -p x --drafter model", "needs --draft-model NAME"),
        ("generate -p x --logit-bias 5", "must be ID=VALUE"),
        ("generate -p x --logit-bias a=5", "is not a whole number"),
        ("generate -p x --system-prompt y", "needs --chat"),
        ("generate -p x --chat-template {{x}}", "--chat-template needs --chat"),
        ("generate -p x --chat-template-args {}", "--chat-template-args needs --chat"),
        ("chat --chat-template nowhere.jinja", "nowhere.jinja cannot be read: No such file"),
        ("chat --chat-template-args {", "{ is not JSON"),
        ("chat --chat-template-args [1]", "[1] is not a JSON object"),
        (
            "chat --xtc-probability 0.5",
            "--xtc-probability changes sampled answers only; set --temp",
        ),
        ("chat --max-kv-size 15", "--max-kv-size must be 16 or more"),
        ("chat --max-kv-size 64 --kv-bits 8", "with --kv-bits; omit one"),
        ("chat --kv-bits 3", "--kv-bits must be 4 or 8, not 3"),
        ("chat --drafter ngram --project .", "--project needs the drafter auto, not ngram"),
        ("chat --temp 1 --xtc-threshold 0.3", "--xtc-threshold needs --xtc-probability"),
        ("chat --kv-group-size 32", "--kv-group-size needs --kv-bits"),
        ("serve --quantized-kv-start 7", "--quantized-kv-start needs --kv-bits"),
        ("generate -p x --json --show-drafts", "omit --json"),
        ("chat --prompt x", "chat has no option --prompt"),
        ("serve --port 70000", "--port must be from 0 to 65535"),
        ("serve --parallel 9", "--parallel must be from 1 to 8"),
        ("serve --api-key=", "--api-key must not be empty"),
        ("serve --log-level loud", "'loud' is not one of DEBUG"),
        ("serve --prompt-cache-bytes 4TB", "'4TB' is not a number of bytes such as 4GB or 500MB"),
        ("chat please", "chat does not take the argument please"),
        ("sing", "invalid choice: 'sing'"),
        ("bench", "required: WHAT"),
        ("bench dance", "invalid choice: 'dance'"),
        ("bench cost --second 1", "bench cost has no option --second; did you mean --seconds?"),
        ("bench cost --seconds 0", "--seconds must be above 0 and at most 3600, not 0"),
        ("bench replay", "name a FILE or --memory PATH"),
        ("bench replay a --drafter nobody", "'nobody' is not one of"),
        ("bench replay a --num-draft-tokens 4 100000", "must be from 0 to 1024, not 100000"),
        ("bench speedup --workloads dance", "'dance' is not one of edit"),
        ("bench speedup --workloads", "name --workloads or --data"),
        ("--loud", "required: COMMAND"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        parse(words.split())
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith((".", "?"))


def test_what_is_not_given_has_its_declared_default() -> None:
    assert parse(["doctor"]).settings == DoctorSettings()
    assert parse(["bench", "cost"]).settings == CostSettings()
    assert parse(["bench", "replay", "a.jsonl"]).settings == ReplaySettings((Path("a.jsonl"),))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kv_bits": 3}, "`kv_bits` must be 4 or 8, not 3"),
        ({"kv_bits": 8, "kv_group_size": 48}, "`kv_group_size` must be 32, 64 or 128, not 48"),
        ({"kv_bits": 8, "quantized_kv_start": -1}, "`quantized_kv_start` must be 0 or more"),
        ({"max_context": 0}, "`max_context` must be 1 or more"),
        ({"max_kv_size": 15}, "`max_kv_size` must be 16 or more"),
    ],
)
def test_python_is_told_the_names_of_fields(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        ModelOptions(**options)


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("", (4, 3, 192)),
        ("--quick", (2, 1, 64)),
        ("--quick --prompts 3", (3, 1, 64)),
        ("--rounds 2", (4, 2, 192)),
    ],
)
def test_speedups_quick_is_smaller_except_for_what_is_named(
    words: str, sizes: tuple[int, int, int]
) -> None:
    settings = parse(["bench", "speedup", *words.split()]).settings
    assert isinstance(settings, SpeedupSettings)
    assert (settings.prompts, settings.rounds, settings.max_tokens) == sizes
    assert settings.drafters == ("auto", "ngram")
    assert settings.num_draft_tokens == (None, 4, 8, 16)


def test_each_policy_is_taken_once() -> None:
    words = "bench speedup --drafter ngram ngram --num-draft-tokens auto 4 4"
    settings = parse(words.split()).settings
    assert settings.drafters == ("ngram",)
    assert settings.num_draft_tokens == (None, 4)


def test_words_that_are_not_text_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not valid UTF-8"):
        parse(["generate", "-p", "\udcff"])


def test_every_command_has_a_module() -> None:
    for command in COMMANDS:
        assert command.module.startswith("akunu_py.cli.")
        assert __import__(command.module, fromlist=["run"]).run


def test_help_and_refusals_load_no_library() -> None:
    codes = {
        "--help": 0,
        "--version": 0,
        "chat --help": 0,
        "generate --help": 0,
        "": 2,
        "generate --wrong": 2,
        "generate -p x --temp -1": 2,
        "chat --drafter nobody": 2,
    }
    script = (
        "import sys; from akunu_py.__main__ import main\n"
        "def code(words):\n"
        "    try: return main(words)\n"
        "    except SystemExit as end: return end.code or 0\n"
        f"codes = [code(words.split()) for words in {list(codes)!r}]\n"
        "print('\\n', codes, *sys.modules, sep=';')"
    )
    code, out, err = run("-c", script)
    assert code == 0, err
    _, found, *modules = out.splitlines()[-1].split(";")
    assert found == str(list(codes.values()))
    assert not HEAVY & set(modules)
    assert "Traceback" not in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--version"])
    assert capsys.readouterr().out == f"akunu-py {__version__}\n"
