"""`man`: prints the manual page, made from the options that the command line declares."""

from akunu_py.cli.parser import COMMANDS, PROGRAM, help_of, options_of
from akunu_py.cli.settings import ManSettings
from akunu_py.option_field import Option
from akunu_py.package import __version__


def run(_: ManSettings) -> int:
    """Prints the page in roff."""
    print(f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {__version__}"')
    print(f".SH NAME\n{PROGRAM} \\- a local inference engine that drafts without a second model")
    print(f".SH SYNOPSIS\n.B {PROGRAM}\nCOMMAND [OPTION ...]\n.SH COMMANDS")
    for command in COMMANDS:
        print(f".SS {command.name}\n{_escaped(command.summary)}")
        for option in options_of(command.settings):
            print(f".TP\n{_spelling(option)}\n{_escaped(help_of(option))}")
            if option.off:
                print(f".TP\n\\fB{_escaped(option.off[0])}\\fR\n{_escaped(option.off[2])}")
    return 0


def _spelling(option: Option) -> str:
    flags = ", ".join(f"\\fB{_escaped(it)}\\fR" for it in (option.flag, option.short) if it)
    takes = option.metavar and not option.is_switch and str(option.flag).startswith("-")
    return f"{flags} \\fI{_escaped(str(option.metavar))}\\fR" if takes else flags


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
