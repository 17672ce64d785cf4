"""The command line's grammar: words in, a command and its frozen settings out.

A command is a line in `COMMANDS`; its options are declared in the dataclass of its settings. Its
module is imported only when it runs, so that `--help` and errors in options appear immediately.
"""

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, _ActionsContainer
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from akunu_py.cli.settings import (
    ChatSettings,
    CompletionsSettings,
    CostSettings,
    DoctorSettings,
    EditSettings,
    GenerateSettings,
    IndexSettings,
    LaunchSettings,
    ListSettings,
    ManSettings,
    PsSettings,
    PullSettings,
    ReplaySettings,
    RmSettings,
    ServeSettings,
    ServiceSettings,
    ShowSettings,
    SpeedupSettings,
)
from akunu_py.errors import InvalidRequestError
from akunu_py.option_field import Option, Part, did_you_mean, options_in, parts_in
from akunu_py.option_words import UnreadableWordError
from akunu_py.options import SPECULATION
from akunu_py.package import __version__

PROGRAM: Final = "akunu-py"


@dataclass(frozen=True)
class Command:
    """A command, named by the words that call it: `chat`, or `bench cost`. Its code is in the file
    of that name, or in `file`."""

    name: str
    summary: str
    settings: type
    file: str = ""

    @property
    def module(self) -> str:
        return f"akunu_py.cli.{self.file or self.name.split()[0]}"


COMMANDS: Final = (
    Command("chat", "a conversation; from a pipe, one turn per line", ChatSettings),
    Command("generate", "one completion of a prompt", GenerateSettings),
    Command("edit", "changes files as you ask, and shows the changes", EditSettings),
    Command("serve", "a server for editors and agents", ServeSettings),
    Command("launch", "starts a coding agent with a running server; it gets the words after --",
            LaunchSettings),
    Command("service", "lets the system run `serve` after each login, with the words after --",
            ServiceSettings),
    Command("pull", "fetches a model from the hub", PullSettings, "models"),
    Command("list", "the models on this machine, and which of them fit", ListSettings, "models"),
    Command("show", "facts about a model, from its files", ShowSettings, "models"),
    Command("rm", "deletes a model from the hub's cache", RmSettings, "models"),
    Command("ps", "the models that a server has loaded", PsSettings, "models"),
    Command("bench cost", "what a forward pass of M tokens costs here, and when drafting pays; "
            "saves the costs for the engine to use",
            CostSettings),
    Command("bench speedup", "how much faster than mlx-lm it answers, on several kinds of text",
            SpeedupSettings),
    Command("bench replay", "predicts, without a model, what drafting would gain on known "
            "answers, here or on another chip", ReplaySettings),
    Command("index", "indexes the text of projects, for --project to draft from",
            IndexSettings),
    Command("doctor", "the machine, the model, and whether drafting pays here", DoctorSettings),
    Command("completions", "a script that completes commands in a shell", CompletionsSettings,
            "shell"),
    Command("man", "the manual page, for man -l -", ManSettings, "shell"),
)  # fmt: skip
_PASSING_ON: Final = ("launch", "service")
"""The commands that pass on the words after `--`."""
_WHOLE: Final = Part()
_FAMILIES: Final = {"bench": "measurements of this machine"}


@dataclass(frozen=True)
class Invocation:
    """A command and what it was asked to do."""

    command: Command
    settings: Any


def parse(words: Sequence[str]) -> Invocation:
    """Parses the words after the program's name. An InvalidRequestError names the wrong word and
    where to look; `--help` and `--version` end the program.
    """
    parser = make_parser()
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    at = words.index("--") if words[0] in _PASSING_ON and "--" in words else len(words)
    named, unknown = parser.parse_known_args(words[:at])
    given = vars(named) | {"arguments": list(words[at + 1 :])}
    command: Command = given.pop("command")
    options = {option.name: option for option in options_of(command.settings)}
    if unknown:
        raise InvalidRequestError(_about_unknown(unknown[0], command, options.values()))
    for option in options.values():  # after unknown words, among which it may be, misspelt
        if option.required and option.name not in given:
            see = f"see `{PROGRAM} {command.name} --help`"
            raise InvalidRequestError(f"{command.name} needs {option.flag}; {see}.")
    if given.get("quick"):
        sizes = {it.name: it.quick for it in options.values() if it.quick is not None}
        given = sizes | given
    try:
        return Invocation(command, _fill(command.settings, given, _WHOLE))
    except InvalidRequestError as error:
        raise InvalidRequestError(_in_flags(str(error), options)) from None


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").rstrip(".")
        raise InvalidRequestError(f"{message}; see `{self.prog} --help`.")


def make_parser(completer: Callable[[Option], Any] = lambda _: None) -> ArgumentParser:
    """The parser of all commands; `completer` says how shtab completes an option's value."""
    parser = _Parser(
        PROGRAM,
        description="Runs a language model on your machine, faster because it drafts tokens.",
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
        groups: dict[str, _ActionsContainer] = {"": own}
        # The options of speculation are those of several dataclasses.
        declared = sorted(options_of(command.settings), key=lambda it: it.group == SPECULATION)
        for option in declared:
            if option.group not in groups:
                groups[option.group] = own.add_argument_group(option.group)
            action = _add_argument(groups[option.group], option)
            if found := completer(option):
                action.complete = found  # type: ignore[attr-defined]
    return parser


def _described(summary: str) -> dict[str, Any]:
    return {
        "help": summary,
        "description": f"{summary[0].upper()}{summary[1:]}.",
        "allow_abbrev": False,
    }


def options_of(kind: type, place: Part = _WHOLE) -> Iterator[Option]:
    """The options of a command with these settings, including those of the dataclasses in them."""
    for option in options_in(kind).values():
        if option.flag is not None and option.name not in place.without:
            default = place.defaults.get(option.name, option.default)
            yield replace(option, default=default, group=option.group or place.group)
    for inner, part in parts_in(kind).values():
        yield from options_of(inner, part if part.group else place)


def _add_argument(group: _ActionsContainer, option: Option) -> Action:
    flag = option.flag or ""
    keywords: dict[str, Any] = {"help": help_of(option), "default": SUPPRESS}
    if option.is_switch:
        keywords |= {"action": "store_const", "const": not option.default}
    else:
        keywords |= {"type": _type(option), "metavar": option.metavar, "choices": option.choices}
        if option.repeated:
            keywords["action"] = "append"
        elif option.nargs:
            keywords |= {"nargs": option.nargs, "const": option.const}
    if not flag.startswith("-"):
        return group.add_argument(option.name, **(keywords | {"metavar": flag}))
    if option.off is not None:
        group = group.add_mutually_exclusive_group()
    flags = [flag, option.short] if option.short else [flag]
    action = group.add_argument(*flags, dest=option.name, **keywords)
    if option.off is not None:
        flag, value, help_text = option.off
        keywords = {"action": "store_const", "const": value, "default": SUPPRESS}
        group.add_argument(flag, dest=option.name, help=help_text, **keywords)
    return action


def help_of(option: Option) -> str:
    """What an option is for, and its default."""
    shown = option.shown
    if option.required:
        return f"{option.help} (required)"
    if shown is None and not option.is_switch and option.default not in (None, (), ""):
        shown = str(option.default)
    return option.help if shown is None else f"{option.help} (default: {shown})"


def _type(option: Option) -> Callable[[str], Any]:
    """The reader of an option, with its errors in a form that argparse shows unchanged."""

    def reader(word: str) -> Any:
        try:
            return option.read_word(word)
        except UnreadableWordError as error:
            raise ArgumentTypeError(str(error)) from None

    return reader


def _fill(kind: type, given: Mapping[str, Any], place: Part) -> Any:
    values: dict[str, Any] = {}
    for name, option in options_in(kind).items():
        if name in given:
            value = given[name]
            if isinstance(value, list):
                value = tuple(dict.fromkeys(value) if option.nargs else value)
            values[name] = value
        elif name in place.defaults:
            values[name] = place.defaults[name]
    for name, (inner, part) in parts_in(kind).items():
        values[name] = _fill(inner, given, part)
    return kind(**values)


def _in_flags(sentence: str, options: Mapping[str, Option]) -> str:
    def typed(found: re.Match[str]) -> str:
        return str(options[found[1]].flag) if found[1] in options else found[0]

    return re.sub(r"`(\w+)`", typed, sentence)


def _about_unknown(word: str, command: Command, options: Iterable[Option]) -> str:
    flag = word.partition("=")[0]
    flags = [option.flag for option in options if option.flag]
    hint = did_you_mean(flag, flags)
    refusal = "has no option" if word.startswith("-") else "does not take the argument"
    return f"{command.name} {refusal} {flag}; {hint or f'see `{PROGRAM} {command.name} --help`.'}"
