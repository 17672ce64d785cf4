"""GBNF as llama.cpp reads it, as llguidance's variant of Lark.

llguidance converts it, except some escapes, which are rewritten before, and tokens such as
`<|name|>`, `<[7]>` and `!<|name|>`, which are put in afterwards.
"""

import re
from collections.abc import Callable
from typing import Final

_PARTS: Final = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |"(?P<literal>[^"\\]*+(?:\\.[^"\\]*+)*+)"
    |\[(?P<chars>[^\]\\]*+(?:\\.[^\]\\]*+)*+)\]
    |(?P<open>["\[].*)
    |(?P<token>!?<(?:\[\d{1,9}\]|[^<>\s]++)>)""",
    re.VERBOSE | re.DOTALL,
)
"""What is `open` has no end. It takes the rest, in which each sign could open another part."""
_SIGN: Final = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}
_SPELLED: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HIGHEST: Final = 0x10FFFF


def tokens_in(grammar: str, token_id: Callable[[str], int | None]) -> dict[str, int]:
    """The ids of the vocabulary entries that a grammar may name."""
    named = {part["token"].removeprefix("!") for part in _PARTS.finditer(grammar) if part["token"]}
    return {name: found for name in named if (found := token_id(name)) is not None}


def gbnf_to_lark(grammar: str, token_id: Callable[[str], int | None]) -> str:
    """The grammar in Lark; one that is in Lark already stays as it is. `token_id` returns the id of
    a vocabulary entry, or None. One that cannot be read is a ValueError with the reason.
    """
    from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax  # noqa: PLC0415  (rarely used)

    if is_lark_syntax(grammar):
        return grammar
    tokens: list[str] = []

    def rewritten(part: re.Match[str]) -> str:
        if part["comment"] is not None:
            return ""
        if part["literal"] is not None:
            return _literal(part["literal"])
        if part["chars"] is not None:
            return f"[{_class(part['chars'])}]"
        if part["open"] is not None:
            return part["open"]
        tokens.append(_token(part["token"], token_id))
        return f" akunu-token-{len(tokens)} "

    plain = _PARTS.sub(rewritten, grammar)
    # A rule that names itself: the converter takes it for no text, and keeps its name.
    named = [f"akunu-token-{number}" for number in range(1, len(tokens) + 1)]
    rules = "".join(f"\n{name} ::= {name}\n" for name in named)
    try:
        lark = str(any_to_lark(plain + rules))
    except Exception as error:  # the converter raises many kinds of errors
        raise ValueError(" ".join(str(error).split())) from error
    for name, token in zip(named, tokens, strict=True):
        inner = name.replace("-", "_")
        lark = lark.replace(f"\n{inner}: {inner}\n", f"\n{inner}: {token}\n")
    return lark


def _literal(text: str) -> str:
    """A text between quotes; other control characters are classes of their own."""
    signs = [sign for sign, _ in _signs(text)]
    spelled = [
        _SPELLED.get(sign, sign if sign >= " " else f'" [\\x{ord(sign):02x}] "') for sign in signs
    ]
    joined = f'"{"".join(spelled)}"'
    return f"({joined})" if " [\\x" in joined else joined


def _class(chars: str) -> str:
    """What is between square brackets, with what an expression would take for its own escaped."""
    signs = _signs(chars)
    begin = ""
    if signs[:1] == [("^", False)]:
        begin, signs = "^", signs[1:]
    return begin + "".join(
        f"\\x{ord(sign):02x}"
        if (sign == "-" and escaped) or sign in "\\[]^&~" or sign < " " or sign == "\x7f"
        else sign
        for sign, escaped in signs
    )


def _signs(text: str) -> list[tuple[str, bool]]:
    """The characters that a text spells, and whether each was escaped."""
    found = []
    for match in _SIGN.finditer(text):
        *codes, escaped, plain = match.groups()
        code = next((each for each in codes if each), None)
        if code is not None:
            if int(code, 16) > _HIGHEST:
                raise ValueError(f"There is no character {match[0]}")
            found.append((chr(int(code, 16)), True))
        elif escaped is not None:
            found.append((_ESCAPED.get(escaped, escaped), True))
        else:
            found.append((plain, False))
    return found


def _token(spelled: str, token_id: Callable[[str], int | None]) -> str:
    name = spelled.removeprefix("!")
    number = int(name[2:-2]) if name.startswith("<[") else token_id(name)
    if number is None:
        raise ValueError(f"The model has no token {name}")
    return f"<[{'^' if spelled.startswith('!') else ''}{number}]>"
