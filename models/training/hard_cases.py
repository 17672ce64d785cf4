"""Requests that the weights before course 20 got wrong, kind by kind.

An edit that is done already, statements without a function, several places at once, methods,
words in two roles, edits near those of the training, undoing a part, and code as it is pasted.
Every maker returns a whole conversation, of which the last answer is what matters.
"""

import ast
import difflib
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from models.training import short_edits, wordings
from models.training.chats import WHAT_CHANGE
from models.training.edits import Edit, Pool, fenced, names, whole
from models.training.edits.base import closed, phrase, spliced
from models.training.examples import Turns
from models.training.functions import Function, is_function, parses
from models.training.invented import Inventor, joined
from models.training.near_edits import NearEdits
from models.training.phrases import CHOICES, REQUESTS, drawn, official
from models.training.refusals import answer
from models.training.wordings import as_follow_up

ALREADY: str = CHOICES["already"]
"""Said under code that the request does not change."""
WHICH_NAME: str = CHOICES["which_name"]
ABSENT: str = CHOICES["absent"]
_REAL, _LONGEST_REAL = 0.25, 700  # of edits are of real functions, of at most so many characters
_ONE_LINE = 0.6  # of statements stand in one line
_SHOWN = 0.2  # of codes are shown before anything is asked
_PLACES = re.compile(
    r"( (?:in|of|on|from|to|for|into))? (?:this|the(?: following)?) (?:function|code)\b"
)
_QUOTED = re.compile(r"`([^`]+)`")
_TOKEN = re.compile(r"\w+|\s+|.")


def unchanged(code: str) -> str:
    """The answer where an edit is done already."""
    return f"{fenced(code)}\n{ALREADY}"


def without(first: str, second: str, third: str) -> str | None:
    """`third` without the change from `first` to `second`; None if that part has changed again."""
    old, new, last = (_TOKEN.findall(text) for text in (first, second, third))
    kept: dict[int, int] = {}
    for block in difflib.SequenceMatcher(None, new, last, autojunk=False).get_matching_blocks():
        kept.update((block.a + offset, block.b + offset) for offset in range(block.size))
    changes = difflib.SequenceMatcher(None, new, old, autojunk=False).get_opcodes()
    for tag, begin, end, at, to in reversed(changes):
        if tag == "equal":
            continue
        # The tokens around the change tell where it stands now.
        around = [index for index in (begin - 1, *range(begin, end), end) if 0 <= index < len(new)]
        places = [kept.get(index, -1) for index in around]
        if -1 in places or places != list(range(places[0], places[0] + len(places))):
            return None
        start = places[0] + (begin > 0)
        last[start : start + end - begin] = old[at:to]
    return "".join(last)


class HardCases:
    """Invents such conversations; some of their edits are of real `functions`."""

    def __init__(self, inventor: Inventor, functions: Sequence[Function]) -> None:
        self._inventor, self._rng = inventor, inventor.rng
        self._functions = [f for f in functions if len(f.text) <= _LONGEST_REAL]
        self._near = NearEdits(inventor)
        self.makers: Mapping[str, Callable[[], Turns | None]] = {
            "done already": self.done_already,
            "statements": self.statements,
            "several places": self.several_places,
            "methods": self.methods,
            "two roles": self.two_roles,
            "near the training": self.near,
            "beyond it": self.beyond,
            "undoing a part": self.undoing_a_part,
            "pasted code": self.pasted,
        }

    def conversation(self, kind: str) -> Turns:
        """A conversation of a kind."""
        while (turns := self.makers[kind]()) is None:
            pass
        return turns

    def conversations(self, count: int) -> Iterator[Turns]:
        """`count` conversations, of kinds drawn by their weights."""
        weights = CHOICES["hard_cases"]
        return (self.conversation(drawn(weights, self._rng)) for _ in range(count))

    def done_already(self) -> Turns | None:
        """The same request again, of the answer or of code that is so already; or a name that is
        not there."""
        rng = self._rng
        kind, edit = self._edit(CHOICES["repeatable"])
        if rng.random() < 0.2:
            return self._absent(kind, edit)
        words = self._words(kind, edit)
        if rng.random() < 0.4:
            return [
                ("user", wordings.request(words, edit.after, rng)),
                ("assistant", unchanged(edit.after)),
            ]
        request = ("user", wordings.request(words, edit.before, rng))
        first = [request, ("assistant", fenced(edit.after))]
        if rng.random() < 0.2:  # the same code once more
            return first * 2
        again = closed(words if rng.random() < 0.6 else self._words(kind, edit))
        if rng.random() < 0.4 and "\n" not in again and "?" not in again:
            again = self._inventor.asking("again please").format(again=wordings.small(again))
        return [*first, ("user", again), ("assistant", unchanged(edit.after))]

    def _absent(self, kind: str, edit: Edit) -> Turns | None:
        """A rename of what does not occur."""
        quoted = _QUOTED.findall(edit.instruction)
        if not kind.startswith("rename") or len(quoted) != 2:
            return None
        old, missing = quoted[0], self._inventor.name()
        if whole(missing).search(f"{edit.before}\n{edit.after}"):
            return None
        instruction = edit.instruction.replace(f"`{old}`", f"`{missing}`", 1)
        asked = replace(edit, instruction=instruction, after=edit.before)
        request = wordings.request(self._words(kind, asked), edit.before, self._rng)
        return [("user", request), ("assistant", ABSENT.format(name=missing))]

    def statements(self) -> Turns | None:
        """An edit of statements that stand in one line, or under each other; some were shown
        first."""
        rng = self._rng
        if rng.random() < 0.2:
            return self._in_a_block()
        lines = self._inventor.script(rng.randint(1, 4))
        if rng.random() < 0.25 and len(lines) > 1:
            return self._numbered(lines)
        header = "def Qzaxu():"
        function = Function("\n".join([header, *(f"    {line}" for line in lines)]), False, "")
        kind = rng.choice(CHOICES["of_statements"])
        edit = short_edits.make(kind, function, self._inventor)
        if edit is None or not edit.after.startswith(f"{header}\n"):
            return None
        glue = "; " if rng.random() < _ONE_LINE else "\n"
        before, after = (
            glue.join(line.strip() for line in text.split("\n")[1:])
            for text in (edit.before, edit.after)
        )
        return self._of_code(replace(edit, before=before, after=after), kind)

    def _numbered(self, lines: list[str]) -> Turns:
        """A line less, by its place."""
        row = self._rng.randrange(len(lines))
        rest = [line for index, line in enumerate(lines) if index != row]
        ordinals = ("first", *CHOICES["ordinals"])
        part, words = "number", {"place": f"the {ordinals[row]} line"}
        if row + 1 == len(lines) and self._rng.random() < 0.6:
            part, words = "last", {}
        instruction = phrase(self._rng, official(f"delete_line: {part}"), **words)
        edit = Edit("delete_line", instruction, "\n".join(lines), "\n".join(rest))
        return self._of_code(edit, "delete_line")

    def _in_a_block(self) -> Turns:
        """A name renamed that a loop, a handler or a `with` gives a value."""
        rng, inventor = self._rng, self._inventor
        own, value, function, new = inventor.names(4)
        uses = [f"print({own})", f"{function}({own})", f"{value} = {own}.{inventor.name()}()"]
        first, second = rng.sample(uses, 2)
        error = rng.choice(CHOICES["errors"])
        code = rng.choice(
            (
                f"for {own} in {value}:\n    {first}",
                f"for {own} in {value}:\n    {first}\n    {second}",
                f"with open({value}) as {own}:\n    {first}",
                f"try:\n    {function}({value})\nexcept {error} as {own}:\n    {first}",
                f"try:\n    {function}({value})\nexcept {error} as {own}:\n    {first}\n    raise",
                f"{own} = {function}({value})\nif {own}:\n    {first}\n{second}",
                f"{own} = {value}[0]\n{own} = {own}[{own} > {rng.randint(0, 99)}]\n{first}",
            )
        )
        words = phrase(rng, official("rename_variable: one"), old=own, new=new)
        edit = Edit("rename_variable", words, code, whole(own).sub(new, code))
        return self._of_code(edit, "rename_variable")

    def _of_code(self, edit: Edit, kind: str) -> Turns:
        """An edit of code that is not a function."""
        words = re.sub(r" (?:this|the) function$", " this code", edit.instruction)
        return self._reworded(kind, replace(edit, instruction=words))

    def several_places(self) -> Turns | None:
        """Every print, names of a function and of the lines that use it, or several in a row."""
        chance = self._rng.random()
        if chance < 0.6:
            return self._prints() if chance < 0.3 else self._with_calls()
        return self._names_in_a_row() if chance < 0.8 else self._hints_in_a_row()

    def _names_in_a_row(self) -> Turns | None:
        """Two or three renames in one request, of which one may be the function's."""
        rng, inventor = self._rng, self._inventor
        function = inventor.function()
        inner, own, after = names.renamable(function), function.node.name, function.text
        rng.shuffle(inner)
        chosen = inner[: rng.randint(2, 3)]
        if rng.random() < 0.6 and names.rename_function(function, rng, Pool(("Qzaxu",), ("1",))):
            chosen = [own, *inner[:2]]
        fresh = inventor.names(len(chosen))
        if len(chosen) < 2 or any(whole(new).search(after) for new in fresh):
            return None
        for old, new in zip(chosen, fresh, strict=True):
            splices = names.renamed(function, old, "") if old != own else [(0, 0, "")]
            if len(whole(old).findall(after)) != len(splices):
                return None
            after = whole(old).sub(new, after)
        pairs = list(zip(chosen, fresh, strict=True))
        rng.shuffle(pairs)
        mark, link = rng.choice(("", "", "`")), rng.choice((" to ", " to ", " into ", " -> "))
        said = _in_a_row([f"{mark}{a}{mark}{link}{mark}{b}{mark}" for a, b in pairs], rng)
        words = inventor.asking("rename in a row").format(pairs=said)
        return self._asked(words, function.text, after)

    def _hints_in_a_row(self) -> Turns | None:
        """Types of several parameters, or of one and the result."""
        rng, inventor = self._rng, self._inventor
        function = inventor.function()
        taken = [one.arg for one in function.node.args.args if not one.annotation]
        bare = [one for one in taken if one not in ("self", "cls")][: rng.randint(1, 3)]
        if not bare or function.node.returns or function.node.args.defaults:
            return None
        types = [rng.choice(CHOICES["hints"]) for _ in bare]
        form = rng.choice(
            ("{}: {}", "{} is {}", "{} is a {}", "{} as {}", "{} {}", "{} should be {}")
        )
        said = [form.format(*pair) for pair in zip(bare, types, strict=True)]
        after = function.text
        for one, hint in zip(bare, types, strict=True):
            after = re.sub(rf"(def \w+\([^)]*?\b){one}\b", rf"\g<1>{one}: {hint}", after, count=1)
        if len(bare) == 1 or rng.random() < 0.6:
            result = rng.choice((*CHOICES["hints"], "None"))
            after = re.sub(r"(def \w+\([^)]*\)):", rf"\g<1> -> {result}:", after, count=1)
            result_form = rng.choice(
                ("returns {}", "it returns {}", "returns a {}", "-> {}", "return {}")
            )
            said.append(result_form.format(result))
        if after.count(" -> ") > 1 or len(said) < 2 or not parses(after):
            return None
        words = inventor.asking("hints in a row").format(hints=_in_a_row(said, rng))
        return self._asked(words, function.text, after)

    def _prints(self) -> Turns | None:
        """Code without its prints, each of which has its own line."""
        inventor, rng = self._inventor, self._rng
        text = (
            inventor.function().text if rng.random() < 0.75 else "\n".join(self._inventor.script(3))
        )
        if "\n" not in text:
            return None
        lines = text.split("\n")
        known = [a for a in re.findall(r"\b[a-z_]\w*\b", lines[0]) if a != "def"] or ["x"]
        for _ in range(rng.randint(1, 3)):
            row = rng.randrange(1, len(lines) + 1)
            near = lines[row] if row < len(lines) else lines[-1]
            indent = near[: len(near) - len(near.lstrip())]
            lines.insert(row, f"{indent}print({inventor.expression(known, rng.choice((0, 0, 1)))})")
        kept = [line for line in lines if not line.lstrip().startswith("print(")]
        before, after = "\n".join(lines), "\n".join(kept)
        if not kept or not (parses(before) and parses(after)):
            return None
        return self._asked(self._inventor.asking("all prints"), before, after)

    def _with_calls(self) -> Turns | None:
        """A function renamed where it is defined and called; perhaps a parameter as well."""
        inventor, rng = self._inventor, self._rng
        function = inventor.function()
        node = function.node
        given = len(node.args.args) - function.is_method
        if function.is_method or not names.rename_function(function, rng, Pool(("Qzaxu",), ("1",))):
            return None
        text = (joined(function.text) if rng.random() < 0.6 else None) or function.text
        own, (new, other, result) = node.name, inventor.names(3)
        call = f"{own}({', '.join(inventor.atom([other]) for _ in range(given))})"
        shapes = (
            f"print({call})",
            f"{result} = {call}",
            call,
            f"{result} = {call}\nprint({result})",
        )
        code = text + rng.choice(("\n", "\n\n", "\n\n\n")) + rng.choice(shapes)
        if not parses(code):
            return None
        count = len(whole(own).findall(code))
        uses = sum(
            getattr(n, "id", getattr(n, "name", "")) == own for n in ast.walk(ast.parse(code))
        )
        if count != uses or whole(new).search(code):
            return None
        after, kind = whole(own).sub(new, code), "rename_function"
        words = phrase(rng, official(kind), old=own, new=new)
        alone = Function(text, False, "")
        inner = names.renamable(alone)
        if inner and rng.random() < 0.5:
            old2, new2 = rng.choice(inner), inventor.name()
            places = len(names.renamed(alone, old2, ""))
            if whole(new2).search(after) or len(whole(old2).findall(code)) != places:
                return None
            after, kind = whole(old2).sub(new2, after), "rename_variable"
            (a, b), (c, d) = rng.sample([(own, new), (old2, new2)], 2)
            words = phrase(rng, official(f"{kind}: two"), old=a, new=b, old2=c, new2=d)
        return self._reworded(kind, Edit(kind, words, code, after))

    def methods(self) -> Turns | None:
        """An edit of one method of a class, or of a method that is pasted as it stands there."""
        inventor, rng = self._inventor, self._rng
        found = [self._method() for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        own = [one.node.name for one in found]
        if len(set(own)) != len(own):
            return None
        at = rng.randrange(len(found))
        kind = rng.choice(CHOICES["of_methods"])
        edit = short_edits.make(kind, found[at], inventor)
        if edit is None or edit.before != found[at].text:
            return None
        if len(found) == 1 and rng.random() < 0.6:
            before, after = (textwrap.indent(text, "    ") for text in (edit.before, edit.after))
            return self._asked(self._words(kind, edit), before, after)
        header = f"class {wordings.large(inventor.name())}:\n"
        if rng.random() < 0.15:
            return self._class_docstring(header, found)
        texts = [one.text for one in found]

        def in_class(text: str) -> str:
            return header + textwrap.indent(
                "\n\n".join([*texts[:at], text, *texts[at + 1 :]]), "    "
            )

        before, words = in_class(edit.before), self._words(kind, edit)
        if len(found) > 1 and not any(
            whole(one).search(edit.before) and len(whole(one).findall(before)) == 1
            for one in _QUOTED.findall(edit.instruction)
        ):
            words = self._of_method(words, own[at])
        return self._asked(words, before, in_class(edit.after))

    def _of_method(self, words: str, name: str) -> str:
        """The words with the name of the method that they are about."""
        if whole(name).search(words):
            return words
        place = self._rng.choice(CHOICES["of_one_method"]).format(name)
        if found := _PLACES.search(words):
            return f"{words[: found.start()]}{found[1] or ''}{place}{words[found.end() :]}"
        if re.search(r"\bit\b", words):
            return re.sub(r"\bit\b", place.strip(), words, count=1)
        return f"{closed(words)} in{place}"

    def _method(self) -> Function:
        """A method, of which some are decorated."""
        while True:
            made = self._inventor.function()
            if made.is_method or "self" not in made.text:
                break
        if self._rng.random() < 0.35 and not made.text.startswith("@"):
            name = self._rng.choice((*CHOICES["method_decorators"], self._inventor.name()))
            made = replace(made, text=f"@{name}\n{made.text}")
        return made

    def _class_docstring(self, header: str, found: Sequence[Function]) -> Turns:
        """A class that gets a docstring of given words."""
        text = f"{wordings.large(self._inventor.words(2, 6))}."
        methods = textwrap.indent("\n\n".join(one.text for one in found), "    ")
        name = header.split()[1].rstrip(":")
        after = f'{header}    """{text}"""\n\n{methods}'
        words = self._inventor.asking("class docstring").format(text=text, name=name)
        request = wordings.request(words, header + methods, self._rng)
        return [("user", request), ("assistant", fenced(after))]

    def two_roles(self) -> Turns | None:
        """A name that is also another's, in a string or an attribute; and "it" for a name."""
        rng = self._rng
        if rng.random() < 0.35:
            return self._renaming_it()
        inventor = self._inventor
        letters = rng.sample("abcdefghijklmnopqrstuvwxyz", 4)
        own, old, other, new = letters if rng.random() < 0.6 else inventor.names(4)
        parameters = [old, other][: rng.choice((1, 1, 2))]
        rng.shuffle(parameters)
        right = rng.choice((other if other in parameters else "1", str(rng.randint(0, 99))))
        shapes = (
            f"{old} {rng.choice('+-*/')} {right}",
            f"{own}({old} - {right})",
            f"{inventor.name()}.{old}({old})",
            f"{inventor.name()}.{old} + {old}",
            f'"{old}" + {old}',
            f'{old}["{old}"]',
            f"{inventor.name()}({old}={old})",
            f"{old}.{old}",
            old,
        )
        value = rng.choice(shapes)
        body = rng.choice((f"return {value}", f"return {value}", f"print({value})"))
        gap = rng.choice((" ", " ", "\n    "))
        text = f"def {own}({', '.join(parameters)}):{gap}{body}"
        function = Function(text, False, "")
        if new in text:
            return None
        if rng.random() < 0.3:
            edit = names.rename_function(function, rng, Pool((new,), ("1",)))
            kind = "rename_function"
        else:
            kind = "rename_variable"
            words = phrase(rng, official("rename_variable: one"), old=old, new=new)
            edit = Edit(kind, words, text, spliced(text, names.renamed(function, old, new)))
        return self._reworded(kind, edit) if edit else None

    def _renaming_it(self) -> Turns | None:
        """A second rename of what was renamed; without a first one, the question which name."""
        rng, inventor = self._rng, self._inventor
        kind, edit = self._edit(["rename_variable", "rename_variable", "rename_function"])
        quoted = _QUOTED.findall(edit.instruction)
        new = inventor.name()
        if len(quoted) != 2 or whole(new).search(edit.before + edit.after):
            return None
        asked = self._inventor.asking("rename it").format(new=new)
        if rng.random() < 0.3:
            plain = asked.removeprefix("now ").removeprefix("and ").removeprefix("then ")
            request = wordings.request(plain, edit.before, rng)
            return [("user", request), ("assistant", WHICH_NAME)]
        if whole(quoted[1]).search(edit.before):
            return None
        first = wordings.request(self._words(kind, edit), edit.before, rng)
        after = whole(quoted[1]).sub(new, edit.after)
        return [
            *(("user", first), ("assistant", fenced(edit.after))),
            *(("user", asked), ("assistant", fenced(after))),
        ]

    def near(self) -> Turns | None:
        """An edit that the courses before did not have."""
        edit = self._near.edit()
        return self._asked(edit.instruction, edit.before, edit.after) if edit else None

    def beyond(self) -> Turns | None:
        """A request that is too hard, with its code."""
        rng, words = self._rng, self._inventor.asking("near")
        code, said = self._inventor.any_code(), ("assistant", answer("judge"))
        chance = rng.random()
        if chance < 0.2:
            kind, edit = self._edit(CHOICES["repeatable"])
            first = ("user", wordings.request(self._words(kind, edit), edit.before, rng))
            return [
                first,
                ("assistant", fenced(edit.after)),
                ("user", as_follow_up(words, rng)),
                said,
            ]
        if chance < 0.35:
            return [("user", code), ("assistant", WHAT_CHANGE), ("user", words), said]
        return [("user", wordings.request(words, code, rng)), said]

    def undoing_a_part(self) -> Turns | None:
        """Two or three edits, of which an earlier one is taken back."""
        rng, inventor = self._rng, self._inventor
        kind, edit = self._edit(CHOICES["before_others"])
        named = REQUESTS.get(f"undo: {kind}")
        if not named or not is_function(edit.after) or not is_function(edit.before):
            return None
        turns = [
            ("user", wordings.request(self._words(kind, edit), edit.before, rng)),
            ("assistant", fenced(edit.after)),
        ]
        current, seen = Function(edit.after, False, ""), {kind}
        for _ in range(rng.choice((1, 1, 2))):
            other = rng.choice([*CHOICES["before_others"], *["rename_variable"] * 8])
            later = short_edits.make(other, current, inventor)
            if later is None or later.before != current.text or other in seen - {"rename_variable"}:
                return None
            asked = as_follow_up(closed(self._words(other, later)), rng, later)
            turns += [("user", asked), ("assistant", fenced(later.after))]
            current = Function(later.after, False, "")
            if not is_function(current.text):
                return None
            seen.add(other)
        back = without(edit.before, edit.after, current.text)
        if back is None or not is_function(back) or back == current.text:
            return None
        return [*turns, ("user", as_follow_up(rng.choice(named), rng)), ("assistant", fenced(back))]

    def pasted(self) -> Turns | None:
        """Code with tabs, indented, or between blank lines: without a request, or with one."""
        rng = self._rng
        kind, edit = self._edit(CHOICES["of_methods"])
        if "\n" not in edit.before or "    " not in edit.before:
            return None
        before, after, chance = edit.before, edit.after, rng.random()
        with_tabs = chance < 0.5
        if with_tabs:
            before, after = (_with_tabs(text) for text in (before, after))
        if chance > 0.3:
            indent = "\t" if with_tabs else rng.choice(("    ", "    ", "        ", "  "))
            before, after = (textwrap.indent(text, indent) for text in (before, after))
        if rng.random() < 0.4:
            around = rng.choice(("{}", "\n{}", "{}\n", "\n{}\n"))
            return [("user", around.format(before)), ("assistant", WHAT_CHANGE)]
        return self._asked(self._words(kind, edit), before, after)

    def _edit(self, kinds: Sequence[str]) -> tuple[str, Edit]:
        """An edit of one of the kinds, of invented code or of a real function."""
        while True:
            kind = self._rng.choice(kinds)
            if self._functions and self._rng.random() < _REAL:
                edit = short_edits.make(kind, self._rng.choice(self._functions), self._inventor)
            else:
                _, edit = short_edits.drawn(self._inventor, kind)
            if edit is not None and edit.before != edit.after:
                return kind, edit

    def _words(self, kind: str, edit: Edit) -> str:
        asked = wordings.instruction(edit, kind, self._rng)
        return wordings.spoken(asked, self._rng, edit)

    def _reworded(self, kind: str, edit: Edit) -> Turns:
        """The edit, asked for in other words."""
        return self._asked(self._words(kind, edit), edit.before, edit.after)

    def _asked(self, words: str, before: str, after: str) -> Turns:
        """An edit asked for with its code, or once that was shown."""
        if self._rng.random() < _SHOWN and "\n" not in words:
            words = wordings.ended(closed(words), self._rng)
            shown = [("user", before), ("assistant", WHAT_CHANGE), ("user", words)]
        else:
            shown = [("user", wordings.request(words, before, self._rng))]
        return [*shown, ("assistant", fenced(after))]


def _in_a_row(parts: Sequence[str], rng: random.Random) -> str:
    """The parts, joined as in a sentence."""
    between, last = rng.choice(
        ((", ", " and "), (", ", ", "), (" and ", " and "), (", ", ", and "))
    )
    return f"{between.join(parts[:-1])}{last}{parts[-1]}"


def _with_tabs(text: str) -> str:
    """The text with a tab for every four spaces that a line begins with."""
    return re.sub(
        r"^(?: {4})+", lambda found: "\t" * (len(found[0]) // 4), text, flags=re.MULTILINE
    )
