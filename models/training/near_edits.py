"""Edits near those of the training: `is None`, and lines that become comments."""

import re

from models.training import short_edits
from models.training.edits import Edit
from models.training.functions import parses
from models.training.invented import Inventor


class NearEdits:
    """Invents them, each with one right result."""

    def __init__(self, inventor: Inventor) -> None:
        self._inventor, self._rng = inventor, inventor.rng

    def edit(self) -> Edit | None:
        """An edit of any of the kinds, or None where this attempt found none."""
        makers = (self._is_none, self._comment_out)
        edit = self._rng.choice(makers)()
        return edit if edit and parses(edit.before) and parses(edit.after) else None

    def _is_none(self) -> Edit | None:
        """Comparisons with None, in one place or several."""
        text = self._inventor.any_code()
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
        return (
            Edit("is none", self._inventor.asking("is none"), text, after)
            if after != text
            else None
        )

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
        words = self._inventor.asking("comment out").format(line=f"{mark}{said}{mark}")
        return Edit("comment out", words, function.text, "\n".join(before))
