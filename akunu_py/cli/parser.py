"""The command line's grammar: words in, a command and its frozen settings out.

A command is a line in `COMMANDS`; its program is imported only when it runs, so that `--help` and
a wrong option answer at once.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from akunu_py.cli.bench_settings import BenchSettings, DoctorSettings
from akunu_py.cli.serve_settings import ServeSettings
from akunu_py.cli.settings import ChatSettings, GenerateSettings, Settings
from akunu_py.errors import InvalidRequestError
from akunu_py.package import __version__

PROGRAM: Final = "akunu-py"


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        name: the word that calls it.
        summary: what it does, in a few words.
        settings: declares and reads its options.
        home: the module whose `run(settings)` does it and returns the exit code.
    """

    name: str
    summary: str
    settings: type[Settings]
    home: str


COMMANDS: Final = (
    Command("chat", "a conversation; from a pipe, one turn a line", ChatSettings,
            "akunu_py.cli.chat"),
    Command("generate", "one completion of a prompt", GenerateSettings, "akunu_py.cli.generate"),
    Command("serve", "the completion backend of editors and agents", ServeSettings,
            "akunu_py.cli.serve"),
    Command("bench", "measurements of this machine", BenchSettings, "akunu_py.cli.bench"),
    Command("doctor", "the machine, the model, and whether drafting pays here", DoctorSettings,
            "akunu_py.cli.doctor"),
)  # fmt: skip


@dataclass(frozen=True)
class Invocation:
    """A command and what it was asked to do."""

    command: Command
    settings: Settings


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
    command: Command = named.command
    if unknown:
        raise InvalidRequestError(_about_unknown(unknown[0], command))
    return Invocation(command, command.settings.from_words(named))


class _Parser(argparse.ArgumentParser):
    """Raises what it finds wrong, as one sentence."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").rstrip(".")
        raise InvalidRequestError(f"{message}; see `{self.prog} --help`.")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        PROGRAM,
        description="A local model that answers faster by drafting with n-grams, exactly.",
        epilog=f"`{PROGRAM} COMMAND --help` lists a command's options.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            allow_abbrev=False,
        )
        command.settings.add_options(own)
        own.set_defaults(command=command)
    return parser


def _about_unknown(word: str, command: Command) -> str:
    """What to say about a word that no option takes."""
    from difflib import get_close_matches  # noqa: PLC0415  (needed only when something is wrong)

    option = word.partition("=")[0]
    close = get_close_matches(option, _option_names(command), n=1)
    remedy = f"did you mean {close[0]}?" if close else f"see `{PROGRAM} {command.name} --help`."
    what = "option" if word.startswith("-") else "use for the word"
    return f"{command.name} has no {what} {option}; {remedy}"


def _option_names(command: Command) -> Iterator[str]:
    parser = argparse.ArgumentParser()
    command.settings.add_options(parser)
    for action in parser._actions:
        yield from action.option_strings
