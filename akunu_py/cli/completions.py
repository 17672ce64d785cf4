"""`completions`: prints a script that completes commands in a shell.

shtab writes the script from the options that the command line declares. Names of models are looked
up at each completion.
"""

from typing import Any, Final

import shtab

from akunu_py.cli.parser import PROGRAM, make_parser
from akunu_py.cli.settings import CompletionsSettings
from akunu_py.option_field import Option

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


def run(settings: CompletionsSettings) -> int:
    """Prints the script."""
    print(shtab.complete(make_parser(_completer), settings.shell))
    return 0


def _completer(option: Option) -> Any:
    if option.name in _MODELS:
        return _MODEL
    return shtab.FILE if {option.word, option.metavar} & _PLACES else None
