"""What schemas say about texts, as expressions of llguidance's variant of Lark."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_CLASSES: Final = {"\\w": "0-9A-Za-z_", "\\d": "0-9"}
"""In the patterns of schemas these are ASCII; in llguidance's expressions they are not."""


def lengths(schema: Mapping[str, Any]) -> str:
    """The expression of texts as long as a schema says."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"/(?s:.{{{least},{most}}})/" if least or most != "" else "/(?s:.*)/"


def may_be_empty(schema: Mapping[str, Any]) -> bool:
    """Whether an empty text is what a schema says."""
    pattern = schema.get("pattern")
    if schema.get("minLength") or not isinstance(pattern, str):
        return not schema.get("minLength")
    try:
        return re.search(pattern, "") is not None
    except re.error:
        return False


def containing(marks: Sequence[str]) -> str:
    """The expression of texts with one of these marks in them."""
    found = "|".join(_escaped(mark) for mark in marks if mark)
    return f"/(?s:.*)({found})(?s:.*)/"


def whole_pattern(pattern: str) -> str:
    """A schema's pattern, which looks for a place in the text, as an expression of the whole."""
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    is_anchored = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern.removeprefix("^")[: -1 if is_anchored else None]
    in_class, signs = False, []
    for sign in re.findall(r"\\?.", inner, re.DOTALL):
        in_class = sign == "[" or (in_class and sign != "]")
        meant = _CLASSES.get(sign, "\\/" if sign == "/" else sign)
        signs.append(f"[{meant}]" if sign in _CLASSES and not in_class else meant)
    return f"/{begin}({''.join(signs)}){'' if is_anchored else '(?s:.*)'}/"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/")
