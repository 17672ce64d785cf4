"""Where a measurement goes: the options that all of `bench` have in common. Plain Python."""

from argparse import ArgumentParser
from pathlib import Path

from akunu_py.cli.settings import text


def add_outputs(parser: ArgumentParser) -> None:
    """Declares `--json` and `--plot`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--plot", metavar="FILE", type=text, help="draw it into a .png, .svg or .pdf"
    )


def file_path(word: str | None) -> Path | None:
    """The file that a word names, if there is a word."""
    return None if word is None else Path(word).expanduser()
