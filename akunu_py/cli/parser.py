"""The command line's grammar: words in, a command and its frozen settings out.

A command is a line in `COMMANDS`. Its module is imported only when it runs, so that `--help` and
the refusal of a wrong option are immediate.
"""

import sys
from argparse import SUPPRESS, ArgumentParser, _ArgumentGroup
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, NoReturn, get_type_hints

from akunu_py.cli.option_table import (
    ANSWERS,
    BENCH_DRAFTERS,
    EVERY,
    Option,
    did_you_mean,
    options_of,
)
from akunu_py.cli.settings import (
    ChatSettings,
    CostSettings,
    DoctorSettings,
    GenerateSettings,
    IndexSettings,
    ReplaySettings,
    ServeSettings,
    SpeedupSettings,
)
from akunu_py.drafting import MODEL_DRAFTER
from akunu_py.errors import InvalidRequestError
from akunu_py.package import __version__

PROGRAM: Final = "akunu-py"


@dataclass(frozen=True)
class Command:
    """A command of the program, by the words that call it: `chat`, or `bench cost`."""

    name: str
    summary: str
    settings: type

    @property
    def module(self) -> str:
        """The module whose `run(settings)` runs it and returns the exit code."""
        return f"akunu_py.cli.{self.name.split()[0]}"


COMMANDS: Final = (
    Command("chat", "a conversation; from a pipe, one turn per line", ChatSettings),
    Command("generate", "one completion of a prompt", GenerateSettings),
    Command("serve", "the completion backend for editors and agents", ServeSettings),
    Command("bench cost", "what a forward of M tokens costs here, and when drafting pays; saves "
            "the costs, which the engine then uses",
            CostSettings),
    Command("bench speedup", "how much faster than mlx-lm answers are, on several kinds of text",
            SpeedupSettings),
    Command("bench replay", "a prediction, without a model: what drafting would bring on known "
            "answers, here or on another chip", ReplaySettings),
    Command("index", "learns the text of projects, which --project then drafts from",
            IndexSettings),
    Command("doctor", "the machine, the model, and whether drafting pays here", DoctorSettings),
)  # fmt: skip
_NAMES_OF_MLX_LM: Final = {
    "serve --allowed-origins": "did you mean --cors?",
    "serve --decode-concurrency": "did you mean --parallel?",
    "serve --prompt-concurrency": "prompts are read one after another; see --parallel.",
    "generate --chat-template-config": "did you mean --chat-template-args?",
    "generate --ignore-chat-template": "prompts are continued as they are, unless --chat is given.",
    "generate --extra-eos-token": "did you mean --stop?",
    "generate --min-tokens-to-keep": "--min-p and --top-p always keep the most likely token.",
    "generate --quantize-activations": "activations stay as they are.",
    "generate --image": "images are not read.",
    "serve --prompt-cache-size": "did you mean --prompt-cache-bytes?",
}
"""What to say about options of mlx-lm that have another name or no use here."""
_FAMILIES: Final = {"bench": "measurements of this machine"}


@dataclass(frozen=True)
class Invocation:
    """A command and what it was asked to do."""

    command: Command
    settings: Any


def parse(words: Sequence[str]) -> Invocation:
    """Reads the words after the program's name.

    Raises:
        InvalidRequestError: if they make no sense; the text says which one, and where to look.
        SystemExit: after `--help` or `--version` has been printed.
    """
    parser = _make_parser()
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    named, unknown = parser.parse_known_args(words)
    given = vars(named)
    command: Command = given.pop("command")
    if unknown:
        raise InvalidRequestError(_about_unknown(unknown[0], command))
    return Invocation(command, _fill(command.settings, _values(options_of(command.name), given)))


class _Parser(ArgumentParser):
    """Raises errors, in one sentence, instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").rstrip(".")
        raise InvalidRequestError(f"{message}; see `{self.prog} --help`.")


def _make_parser() -> ArgumentParser:
    parser = _Parser(
        PROGRAM,
        description="A local model that answers faster by drafting with n-grams, exactly.",
        epilog=f"`{PROGRAM} COMMAND --help` lists a command's options.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    families: dict[str, Any] = {}
    for command in COMMANDS:
        family, _, name = command.name.rpartition(" ")
        if family and family not in families:
            own = commands.add_parser(family, **_described(_FAMILIES[family]))
            families[family] = own.add_subparsers(
                title="measurements", metavar="WHAT", required=True
            )
        own = families.get(family, commands).add_parser(name, **_described(command.summary))
        own.set_defaults(command=command)
        groups: dict[str, ArgumentParser | _ArgumentGroup] = {"": own}
        for option in options_of(command.name):
            if option.group not in groups:
                groups[option.group] = own.add_argument_group(option.group)
            _add_argument(groups[option.group], option)
    return parser


def _described(summary: str) -> dict[str, Any]:
    return {
        "help": summary,
        "description": f"{summary[0].upper()}{summary[1:]}.",
        "allow_abbrev": False,
    }


def _add_argument(group: ArgumentParser | _ArgumentGroup, option: Option) -> None:
    keywords: dict[str, Any] = {"help": option.described, "default": SUPPRESS}
    if option.const is not None and option.nargs is None:
        keywords |= {"action": "store_const", "const": option.const}
    else:
        keywords |= {"type": option.read, "metavar": option.metavar, "choices": option.choices}
        if option.repeated:
            keywords["action"] = "append"
        elif option.nargs:
            keywords |= {"nargs": option.nargs, "const": option.const}
    if option.flag.startswith("-"):
        flags = [option.flag, option.short] if option.short else [option.flag]
        group.add_argument(*flags, dest=option.name, required=option.required, **keywords)
    else:
        group.add_argument(option.name, **(keywords | {"metavar": option.flag}))


def _values(options: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every field that a command's options fill.

    Raises:
        InvalidRequestError: if a number is out of its range, or two options do not go together.
    """
    quick = given.get("quick", False)
    values: dict[str, Any] = {}
    for option in options:
        if option.name in given:
            value = given[option.name]
            if option.nargs in ("+", "*"):
                value = tuple(dict.fromkeys(value))  # each once
            elif option.repeated:
                value = tuple(value)
            _check_range(option, value)
            values[option.name] = value
        else:
            default = option.default if option.quick is None or not quick else option.quick
            values.setdefault(option.name, default)
    if EVERY in values.get("drafters", ()):
        values["drafters"] = tuple(name for name in BENCH_DRAFTERS if name != "none")
    if "answers" in values:
        values["answers"] = ANSWERS if values["answers"] == "both" else (values["answers"],)
    if "drafter" in values:
        _settle_drafter(values)
    return values


def _settle_drafter(values: dict[str, Any]) -> None:
    """Sets the drafter of a command that answers.

    Raises:
        InvalidRequestError: if another option does not go with it.
    """
    if values["no_speculate"]:
        for name, harmless in (("drafter", "none"), ("num_draft_tokens", 0)):
            if values[name] not in (None, harmless):
                flag = f"--{name.replace('_', '-')} {values[name]}"
                raise InvalidRequestError(f"--no-speculate turns drafting off; omit {flag}.")
        values["drafter"] = "none"
    if values["drafter"] == MODEL_DRAFTER and values["draft_model"] is None:
        raise InvalidRequestError("--drafter model needs --draft-model NAME.")
    usual = "auto" if values["draft_model"] is None else MODEL_DRAFTER
    values["drafter"] = values["drafter"] or usual
    if values["projects"] and values["drafter"] != "auto":
        raise InvalidRequestError(
            "--project needs the drafter auto; omit --project, --drafter or --no-speculate."
        )
    if values["projects"] and not values.get("remembers", True):
        raise InvalidRequestError("--no-memory turns all memory off; omit --project.")


def _check_range(option: Option, value: Any) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if option.within is not None and number is not None and number not in option.within:
            raise InvalidRequestError(f"{option.flag} must be {option.within}, not {number:g}.")


def _fill(kind: Any, values: Mapping[str, Any]) -> Any:
    """Makes a dataclass from values by the names of its fields, and the dataclasses in it."""
    hints = get_type_hints(kind)
    filled: dict[str, Any] = {}
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            filled[field.name] = _fill(hints[field.name], values)
        elif field.name in values:
            filled[field.name] = values[field.name]
    return kind(**filled)


def _about_unknown(word: str, command: Command) -> str:
    """What to say about a word that no option takes."""
    flag = word.partition("=")[0]
    hint = _NAMES_OF_MLX_LM.get(f"{command.name} {flag}") or did_you_mean(
        flag, [option.flag for option in options_of(command.name)]
    )
    refusal = "has no option" if word.startswith("-") else "does not take the word"
    return f"{command.name} {refusal} {flag}; {hint or f'see `{PROGRAM} {command.name} --help`.'}"
