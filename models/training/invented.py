"""Short invented functions, as people type them to try a model out.

Names are drawn so that hardly one occurs twice: copying them has to be learned, they cannot be
remembered. One name in eight and one shape of function in eight are held out for evaluation;
names of one letter, of which there are too few, are not.
"""

import builtins
import keyword
import random
import re
import textwrap

from models.training import wordings
from models.training.edits.base import Lines
from models.training.functions import Function, is_function, outline, parses
from models.training.phrases import CHOICES, LISTS, drawn, is_held_out, requests_of

MAX_LINE = 90
_BRIEF = 0.6  # of functions are one statement, without docstring or comment
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_TAKEN = frozenset((*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls"))
_OPERATORS, _COMPARISONS = CHOICES["operators"], CHOICES["comparisons"]
_CALLS, _METHODS, _HINTS = CHOICES["calls"], CHOICES["methods"], CHOICES["hints"]
_USUAL_CALL = re.compile(rf"(?<![\w.])(?:{'|'.join(_CALLS)})\(")
_CALLING_ITSELF = 0.15  # of functions that call anything usual call themselves
_FOREIGN = 0.06  # of words of strings, comments and docstrings have letters outside ASCII


def joined(text: str) -> str | None:
    """A function of one statement in one line, or None where it has more."""
    lines = text.split("\n")
    if len(lines) != 2 or not lines[0].endswith(":") or len(text) > MAX_LINE:
        return None
    return f"{lines[0]} {lines[1].strip()}"


def in_two_lines(function: Function) -> str:
    """A function of one line with its body in a line of its own."""
    at = Lines(function.text).start(function.node.body[0])
    return f"{function.text[:at].rstrip()}\n    {function.text[at:]}"


class Inventor:
    """Invents names, expressions and functions; `held_out` says from which part of them."""

    def __init__(self, rng: random.Random, *, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out

    def name(self) -> str:
        """A letter, a word, syllables, or two of these."""
        while not self._may_use(name := self._any_name()):
            pass
        return name

    def _may_use(self, name: str) -> bool:
        """True for a name of this part that does not hide one of Python's own."""
        free = name.isidentifier() and name not in _TAKEN
        return free and (len(name) == 1 or is_held_out(name) == self.held_out)

    def _any_name(self) -> str:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.25:
            return rng.choice("abcdefghijklmnopqrstuvwxyz")
        if chance < 0.55:
            return rng.choice(LISTS["name"])
        if chance < 0.78:
            return self._syllables()
        if chance < 0.92:
            return f"{self._part()}_{self._part()}"
        if chance < 0.96:
            return f"{self._part()}{rng.randint(0, 99)}"
        return self._part() + self._part().capitalize()

    def _syllables(self) -> str:
        draw = self.rng.choice
        ends = ("", draw(_CONSONANTS))
        parts = (draw(_CONSONANTS) + draw(_VOWELS) + draw(ends) for _ in range(draw((1, 2, 2, 3))))
        made = "".join(parts)
        return made.upper() if self.rng.random() < 0.05 else made

    def _part(self) -> str:
        return self.rng.choice(LISTS["name"]) if self.rng.random() < 0.6 else self._syllables()

    def words(self, low: int, high: int) -> str:
        """Some words and syllables, a few of them with letters outside ASCII."""
        return " ".join(self._word() for _ in range(self.rng.randint(low, high)))

    def _word(self) -> str:
        rng = self.rng
        if rng.random() >= _FOREIGN:
            return self._part()
        if rng.random() < 0.4:
            return "".join(rng.choices(rng.choice(CHOICES["scripts"]), k=rng.randint(1, 5)))
        word = self._part()
        at = rng.randrange(len(word))
        return f"{word[:at]}{rng.choice(CHOICES['accented'])}{word[at + 1 :]}"

    def names(self, count: int) -> list[str]:
        """Different names, in one case of four relatives that share their pieces."""
        stem = self.name() if self.rng.random() < 0.25 else ""
        found: dict[str, None] = {}
        while len(found) < count:
            name = self._relative(stem) if stem and self.rng.random() < 0.9 else self.name()
            if self._may_use(name):
                found[name] = None
        return list(found)

    def _relative(self, stem: str) -> str:
        other = self._part()
        shapes = (stem, f"{stem}s", f"{stem}{self.rng.randint(1, 9)}", f"{stem}_{other}")
        return self.rng.choice((*shapes, f"{other}_{stem}", f"{other}_{stem}"))

    def atom(self, names: list[str]) -> str:
        """Mostly a name; else a number or a string."""
        chance = self.rng.random()
        if chance < 0.72:
            return self.rng.choice(names)
        if chance < 0.88:
            return str(self.rng.choice((0, 1, 2, 3, 10, 100, self.rng.randint(0, 999), 0.5)))
        quote = self.rng.choice("\"'")
        return f"{quote}{self.rng.choice((self.words(1, 2), self.words(1, 1), ''))}{quote}"

    def other(self, names: list[str], first: str) -> str:
        """A name, number or string, mostly not the `first` one."""
        return self.atom([name for name in names if name != first] or ["0"])

    def expression(self, names: list[str], depth: int = 2) -> str:
        """An expression over the names, of at most `depth` levels of operators and calls."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.12:
            return self.atom(names)
        name, left = rng.choice(names), self.atom(names)
        right = self.other(names, left)
        inner = [self.expression(names, depth - 1) for _ in range(2)]
        if inner[0] == inner[1]:
            inner[1] = self.other(names, inner[0])
        operand = f"({inner[0]})" if rng.random() < 0.15 else inner[0]
        forms = {
            f"{operand} {rng.choice(_OPERATORS)} {inner[1]}": 49,
            f"{rng.choice((*_CALLS, self.name()))}({', '.join(inner[: rng.randint(1, 2)])})": 15,
            f"{name}.{rng.choice((*_METHODS, self.name()))}()": 9,
            f"{name}.{self.name()}": 7,
            f"{name}[{left}]": 7,
            f"[{left}, {right}]": 6,
            f"{left} if {self.condition(names)} else {right}": 4,
            f"not {name}": 3,
            f"{self.condition(names)} {rng.choice(('and', 'or'))} {self._condition_or(names)}": 3,
            f"{name} {rng.choice(('and', 'or'))} {self.other(names, name)}": 3,
            self._row(name, left): 1,
        }
        return drawn(forms, rng)

    def _row(self, name: str, other: str) -> str:
        """The same name several times over, perhaps with something else at the end."""
        row = [name] * self.rng.randint(2, 6) + [other] * self.rng.randint(0, 1)
        return f" {self.rng.choice(_OPERATORS)} ".join(row)

    def _condition_or(self, names: list[str]) -> str:
        return self.condition(names) if self.rng.random() < 0.5 else self.rng.choice(names)

    def condition(self, names: list[str]) -> str:
        """A comparison of a name."""
        name = self.rng.choice(names)
        return f"{name} {self.rng.choice(_COMPARISONS)} {self.other(names, name)}"

    def _call(self, names: list[str]) -> str:
        return f"{self.rng.choice(names)}.{self.rng.choice(_METHODS)}({self.atom(names)})"

    def simple(self, names: list[str]) -> str:
        """A body of one statement."""
        chance, value = self.rng.random(), self.expression(names)
        if chance < 0.74:
            return f"return {value}"
        if chance < 0.88:
            return f"print({value})"
        if chance < 0.93:
            return self._call(names)
        if chance < 0.96:
            return f"{self.name()}({self.atom(names)})"
        if chance < 0.98:
            return f"{self.name()} = {value}"
        return f"raise {self.rng.choice(('ValueError', 'TypeError'))}({value})"

    def statements(self, names: list[str], *, count: int) -> list[str]:
        """The lines of a body of `count` statements and, mostly, a return."""
        known, lines = list(names), list[str]()
        for local in self.names(count):
            lines += self._statement(known, local)
            if lines[-1].startswith(f"{local} ="):
                known.append(local)
        if not lines or self.rng.random() < 0.8:
            lines.append(f"return {self.expression(known)}")
        return lines

    def _statement(self, known: list[str], local: str) -> list[str]:
        rng, chance = self.rng, self.rng.random()
        value = self.expression(known)
        if chance < 0.5:
            return [f"{local} = {value}"]
        if chance < 0.6:
            operator = rng.choice(("+=", "-=", "*="))
            return [f"{rng.choice(known)} {operator} {self.atom(known)}"]
        if chance < 0.72:
            return [f"if {self.condition(known)}:", f"    {self._inner(known)}"]
        if chance < 0.84:
            loop = f"for {local} in {rng.choice(known)}:"
            return [loop, f"    {self._inner([*known, local])}"]
        return [f"print({value})" if chance < 0.92 else self._call(known)]

    def _inner(self, names: list[str]) -> str:
        value, name = self.expression(names, 1), self.rng.choice(names)
        return self.rng.choice(
            (f"return {value}", f"print({value})", f"{name} += {value}", f"{name} = {value}")
        )

    def function(self) -> Function:
        """A function of this part, of one to some ten statements in lines of their own."""
        while True:
            made = self._function()
            lines = made.text.split("\n")
            ours = is_held_out(outline(made.text)) == self.held_out
            if ours and max(map(len, lines)) <= MAX_LINE and is_function(made.text):
                return made

    def _function(self) -> Function:
        rng = self.rng
        own, *parameters = self.names(1 + rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))
        is_method = rng.random() < 0.15
        returns = f" -> {rng.choice(_HINTS)}" if rng.random() < 0.12 else ""
        start = "async def" if rng.random() < 0.04 else "def"
        header = f"{start} {own}({self._signature(parameters, is_method)}){returns}:"
        attributes = [f"self.{self.name()}" for _ in range(2)] if is_method else []
        names = [*parameters, *attributes] or [self.name()]
        if rng.random() < _BRIEF:
            body = [self.simple(names)]
        else:
            body = self.statements(names, count=rng.choice((0, 1, 1, 2, 2, 3)))
            if rng.random() < 0.3:
                self._comment(body)
            if rng.random() < 0.3:
                body.insert(0, f'"""{self.words(2, 6).capitalize()}."""')
        if rng.random() < _CALLING_ITSELF:
            call = f"self.{own}(" if is_method else f"{own}("
            body = _USUAL_CALL.sub(call, "\n".join(body), count=1).split("\n")
        text = "\n".join([header, *(f"    {line}" for line in body)])
        return Function(text, is_method, "invented")

    def _comment(self, body: list[str]) -> None:
        """Put in a comment or two, after a line or above it."""
        for _ in range(self.rng.choice((1, 1, 2))):
            row, comment = self.rng.randrange(len(body)), f"# {self.words(1, 4)}"
            line = body[row]
            if self.rng.random() < 0.5 and "#" not in line:
                body[row] = f"{line}  {comment}"
            else:
                body.insert(row, line[: len(line) - len(line.lstrip())] + comment)

    def _signature(self, parameters: list[str], is_method: bool) -> str:
        rng, hinted = self.rng, self.rng.random() < 0.2
        shown = [f"{name}: {rng.choice(_HINTS)}" if hinted else name for name in parameters]
        if rng.random() < 0.3:
            for index in range(rng.randint(0, len(shown)), len(shown)):
                value = rng.choice((*CHOICES["usual_defaults"], str(rng.randint(2, 99))))
                shown[index] += f" = {value}" if hinted else f"={value}"
        return ", ".join([*(["self"] if is_method else []), *shown])

    def asking(self, kind: str) -> str:
        """A request of a kind in `phrases.txt`, perhaps with slots."""
        return self.rng.choice(requests_of(kind, held_out=self.held_out))

    def any_code(self) -> str:
        """An invented function, statements, or a class."""
        rng = self.rng
        chance, text = rng.random(), self.function().text
        if chance < 0.2:
            return rng.choice(("\n", "; ")).join(self.script(rng.randint(1, 3)))
        if chance < 0.35:
            header = f"class {wordings.large(self.name())}:\n"
            return header + textwrap.indent(text, "    ")
        return (joined(text) if rng.random() < 0.5 else None) or text

    def script(self, count: int) -> list[str]:
        """Assignments, and as many statements that use them."""
        while not parses("\n".join(lines := self._lines(count))):
            pass
        return lines

    def _lines(self, count: int) -> list[str]:
        rng = self.rng
        known = self.names(rng.choice((1, 1, 2, 3)))
        values = (
            "0",
            "1",
            "[]",
            '""',
            "[1, 2, 3]",
            f"{self.name()}()",
            str(rng.randint(0, 999)),
        )
        lines = list[str]()
        for name in known:
            value = self.expression(known[:1], 1) if rng.random() < 0.3 else rng.choice(values)
            lines.append(f"{name} = {value}")
        for _ in range(count):
            chance, value = rng.random(), self.expression(known, rng.choice((0, 1, 1, 2)))
            if chance < 0.45:
                lines.append(f"print({value})")
            elif chance < 0.65:
                known.append(self.name())
                lines.append(f"{known[-1]} = {value}")
            elif chance < 0.8:
                lines.append(f"{rng.choice(known)} {rng.choice(('+=', '-=', '*='))} {value}")
            else:
                lines.append(f"{self.name()}({value})")
        return lines
