"""Edits near those of the training: `is None`, and lines that become comments.

Besides what hard cases are made from: any code, statements, and requests that need no words of it.
"""

import ast
import re
import textwrap

from models.training import short_edits, wordings
from models.training.edits import Edit
from models.training.invented import Inventor, joined
from models.training.phrases import requests_of


def parses(text: str) -> bool:
    """True for Python, also where it is indented."""
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    return True


class NearEdits:
    """Invents them, each with one right result."""

    def __init__(self, inventor: Inventor) -> None:
        self._inventor, self._rng = inventor, inventor.rng

    def edit(self) -> Edit | None:
        """An edit of any of the kinds, or None where this attempt found none."""
        makers = (self._is_none, self._comment_out)
        edit = self._rng.choice(makers)()
        return edit if edit and parses(edit.before) and parses(edit.after) else None

    def asking(self, kind: str) -> str:
        """A request of a kind, perhaps with slots."""
        return self._rng.choice(requests_of(kind, held_out=self._inventor.held_out))

    def any_code(self) -> str:
        """An invented function, statements, or a class."""
        inventor, rng = self._inventor, self._rng
        chance, text = rng.random(), inventor.function().text
        if chance < 0.2:
            return rng.choice(("\n", "; ")).join(self.script(rng.randint(1, 3)))
        if chance < 0.35:
            header = f"class {wordings.large(inventor.name())}:\n"
            return header + textwrap.indent(text, "    ")
        return (joined(text) if rng.random() < 0.5 else None) or text

    def script(self, count: int) -> list[str]:
        """Assignments, and as many statements that use them."""
        while not parses("\n".join(lines := self._lines(count))):
            pass
        return lines

    def _lines(self, count: int) -> list[str]:
        inventor, rng = self._inventor, self._rng
        known = inventor.names(rng.choice((1, 1, 2, 3)))
        values = (
            "0",
            "1",
            "[]",
            '""',
            "[1, 2, 3]",
            f"{inventor.name()}()",
            str(rng.randint(0, 999)),
        )
        lines = list[str]()
        for name in known:
            value = inventor.expression(known[:1], 1) if rng.random() < 0.3 else rng.choice(values)
            lines.append(f"{name} = {value}")
        for _ in range(count):
            chance, value = rng.random(), inventor.expression(known, rng.choice((0, 1, 1, 2)))
            if chance < 0.45:
                lines.append(f"print({value})")
            elif chance < 0.65:
                known.append(inventor.name())
                lines.append(f"{known[-1]} = {value}")
            elif chance < 0.8:
                lines.append(f"{rng.choice(known)} {rng.choice(('+=', '-=', '*='))} {value}")
            else:
                lines.append(f"{inventor.name()}({value})")
        return lines

    def _is_none(self) -> Edit | None:
        """Comparisons with None, in one place or several."""
        text = self.any_code()
        places = list(re.finditer(r" (==|!=|is not|is|<|>|<=|>=|in|not in) ([^\s:()\[\]]+)", text))
        if not places:
            name = self._rng.choice(re.findall(r"\(([a-z_]\w*)", text) or ["x"])
            text = (
                f"{text.rstrip()} == None"
                if "return" in text.split("\n")[-1]
                else f"{name} == None"
            )
        for found in reversed(self._rng.sample(places, min(len(places), self._rng.randint(1, 2)))):
            operator = self._rng.choice((" == ", " == ", " != "))
            text = f"{text[: found.start()]}{operator}None{text[found.end() :]}"
        after = text.replace(" == None", " is None").replace(" != None", " is not None")
        return Edit("is none", self.asking("is none"), text, after) if after != text else None

    def _comment_out(self) -> Edit | None:
        """A line that is not needed turned into a comment."""
        function = self._inventor.function()
        edit = short_edits.make("delete_line", function, self._inventor)
        if edit is None or edit.before != function.text:
            return None
        before, after = edit.before.split("\n"), edit.after.split("\n")
        rows = [row for row, line in enumerate(before) if row >= len(after) or line != after[row]]
        line = before[rows[0]]
        said, indent = line.strip(), line[: len(line) - len(line.lstrip())]
        if [one.strip() for one in before].count(said) != 1 or "#" in line or "`" in line:
            return None
        before[rows[0]] = f"{indent}# {said}"
        mark = "`" if self._rng.random() < 0.5 else ""
        words = self.asking("comment out").format(line=f"{mark}{said}{mark}")
        return Edit("comment out", words, function.text, "\n".join(before))
