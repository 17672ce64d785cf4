"""What a shell gets from the options that the command line declares: `completions` prints a script
that completes commands, which shtab writes, and `man` the manual page, in roff.

Names of models are looked up at each completion.
"""

from typing import Any, Final

import shtab

from akunu_py.cli.parser import COMMANDS, PROGRAM, help_of, make_parser, options_of
from akunu_py.cli.settings import CompletionsSettings, ManSettings
from akunu_py.option_field import Option
from akunu_py.package import __version__

_PLACES: Final = {"FILE", "FOLDER", "DIR", "PATH", "TEMPLATE"}
_MODELS: Final = {"models", "model", "name", "draft_model"}
_NAMES: Final = f"{PROGRAM} list --names 2>/dev/null"
_MODEL: Final = {
    "bash": "_akunu_py_models",
    "zsh": "_akunu_py_models",
    "fish": f"({_NAMES}) (__fish_complete_directories)",
    "preamble": {
        # Not `compgen -W`, which runs the commands that a name spells.
        "bash": '_akunu_py_models() { local name; compgen -d -- "$1"; '
        f'while IFS= read -r name; do [[ $name != "$1"* ]] || echo "$name"; done < <({_NAMES}); }}',
        "zsh": f'_akunu_py_models() {{ compadd -- ${{(f)"$({_NAMES})"}}; _files -/ }}',
    },
}


def run(settings: CompletionsSettings | ManSettings) -> int:
    """Prints the script or the page."""
    if isinstance(settings, ManSettings):
        _print_page()
    else:
        print(shtab.complete(make_parser(_completer), settings.shell))
    return 0


def _completer(option: Option) -> Any:
    if option.name in _MODELS:
        return _MODEL
    return shtab.FILE if {option.word, option.metavar} & _PLACES else None


def _print_page() -> None:
    print(f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {__version__}"')
    print(f".SH NAME\n{PROGRAM} \\- a local inference engine that drafts without a second model")
    print(f".SH SYNOPSIS\n.B {PROGRAM}\nCOMMAND [OPTION ...]\n.SH COMMANDS")
    for command in COMMANDS:
        print(f".SS {command.name}\n{_escaped(command.summary)}")
        for option in options_of(command.settings):
            print(f".TP\n{_spelling(option)}\n{_escaped(help_of(option))}")
            if option.off:
                print(f".TP\n\\fB{_escaped(option.off[0])}\\fR\n{_escaped(option.off[2])}")


def _spelling(option: Option) -> str:
    flags = ", ".join(f"\\fB{_escaped(it)}\\fR" for it in (option.flag, option.short) if it)
    takes = option.metavar and not option.is_switch and str(option.flag).startswith("-")
    return f"{flags} \\fI{_escaped(str(option.metavar))}\\fR" if takes else flags


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
