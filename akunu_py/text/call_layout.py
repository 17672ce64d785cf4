"""CallLayout: how a model family writes tool calls between the marks that mlx-lm knows, in pieces
that a grammar and a reader share."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

NUMBER: Final = "{n}"
"""Stands for the number of a call."""
TYPE: Final = "{type}"
"""Stands for the JSON type of a value."""
CDATA: Final = ("<![CDATA[", "]]>")
MAX_NAME: Final = 256
"""Characters of the name of a function or a parameter."""
_JSON_TYPES: Final = {str: "string", bool: "boolean", list: "array", dict: "object"}


@dataclass(frozen=True)
class CallLayout:
    """The pieces of text around names and arguments; one that a family does not have is empty.

        start  before_name NAME after_name ARGUMENTS end  (between, and the next call)  close

    The arguments are one JSON object, or, with a `key_end`, values that follow their names:

        key_start KEY key_end VALUE value_end  (separator, and the next)

    `between` is None if each call has its own marks, `quote` if texts are written as JSON. `nests`:
    objects and lists within values are written in the same way; `cdata`: texts that look like XML
    are put into a CDATA section; `id`: that of a call, if the family writes one.
    """

    start: str = ""
    before_name: str = ""
    after_name: str = ""
    end: str = ""
    between: str | None = None
    close: str = ""
    key_start: str = ""
    key_end: str = ""
    value_end: str = ""
    separator: str = ""
    quote: str | None = None
    nests: bool = False
    cdata: bool = False
    id: str = ""

    @property
    def has_json(self) -> bool:
        return not self.key_end

    def written(self, calls: Sequence[Mapping[str, Any]]) -> list[str]:
        """The texts between marks that calls, each a name with its arguments, are mostly written
        as: one for each call, or one for all."""
        each = [
            f"{self.before_name}{call['name']}{self.after_name}".replace(NUMBER, str(number))
            + f"{self._arguments(call['arguments'])}{self.end}"
            for number, call in enumerate(calls)
        ]
        texts = each if self.between is None else [self.between.join(each)]
        return [f"{self.start}{text}{self.close}" for text in texts]

    def _arguments(self, arguments: Mapping[str, Any]) -> str:
        if self.has_json:
            return json.dumps(arguments, ensure_ascii=False)
        written = []
        for key, value in arguments.items():
            raw = json.dumps(value)
            if isinstance(value, str) and self.quote is not None:
                raw = f"{self.quote}{value}{self.quote}"
            type_ = _JSON_TYPES.get(type(value), "number")
            named = f"{self.key_start}{key}{self.key_end}".replace(TYPE, type_)
            written.append(f"{named}{raw}{self.value_end}")
        return self.separator.join(written)


LLAMA3: Final = CallLayout(after_name='", "parameters": ', end="}")
HARMONY: Final = CallLayout(after_name=" <|constrain|>json<|message|>")
DEEPSEEK_MARKS: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
_BEGIN, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001


def deepseek_layout(template: str) -> CallLayout:
    """DeepSeek's calls: V2.5, V3 and R1 write a word and a fence more than V3.1."""
    if "```json" not in template:
        return CallLayout(before_name=_BEGIN, after_name=_SEP, end=_END, between="")
    return CallLayout(
        before_name=f"{_BEGIN}function{_SEP}",
        after_name="\n```json\n",
        end=f"\n```{_END}",
        between="\n",
    )


def _tagged(prefix: str = "", line: str = "") -> CallLayout:
    """GLM's arguments, whose names and values stand in tags of their own."""
    return CallLayout(
        after_name=line,
        key_start=f"<{prefix}arg_key>",
        key_end=f"</{prefix}arg_key>{line}<{prefix}arg_value>",
        value_end=f"</{prefix}arg_value>{line}",
        quote="",
    )


def _invoked(prefix: str = "") -> CallLayout:
    """MiniMax's calls, whose tags name functions and parameters in attributes."""
    return CallLayout(
        start="\n",
        before_name=f'<{prefix}invoke name="',
        after_name='">\n',
        end=f"</{prefix}invoke>\n",
        between="",
        key_start=f'<{prefix}parameter name="',
        key_end='">',
        value_end=f"</{prefix}parameter>\n",
        quote="",
    )


_MISTRAL_LIST: Final = CallLayout(
    start="[",
    before_name='{"name": "',
    after_name='", "arguments": ',
    end="}",
    between=", ",
    close="]",
)
_FUNCTION_GEMMA: Final = CallLayout(
    before_name="call:", after_name="{", end="}", key_end=":", separator=",", quote="<escape>"
)
_BY_PARSER: Final[Mapping[str, CallLayout]] = {
    "function_gemma": _FUNCTION_GEMMA,
    "gemma4": replace(_FUNCTION_GEMMA, quote='<|"|>', nests=True),
    "json_tools": CallLayout(before_name='\n{"name": "', after_name='", "arguments": ', end="}\n"),
    "kimi_k2": CallLayout(
        before_name="<|tool_call_begin|>functions.",
        after_name=f":{NUMBER}<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        between="",
        id=f"functions.{{name}}:{NUMBER}",
    ),
    "kimi_k3": CallLayout(
        before_name='<|open|>call tool="',
        after_name=f'" index="{NUMBER}"<|sep|>',
        end="<|close|>call<|sep|>",
        between="",
        key_start='<|open|>argument key="',
        key_end=f'" type="{TYPE}"<|sep|>',
        value_end="<|close|>argument<|sep|>",
        quote="",
    ),
    "longcat": _tagged("longcat_", "\n"),
    "minicpm5": CallLayout(
        before_name='"',
        after_name='">',
        key_start='<param name="',
        key_end='">',
        value_end="</param>",
        quote="",
        cdata=True,
    ),
    "minimax_m2": _invoked(),
    "muse_spark": _invoked("atem:"),
    "pythonic": CallLayout(
        start="[", after_name="(", end=")", between=", ", close="]", key_end="=", separator=", "
    ),
    "qwen3_coder": CallLayout(
        before_name="\n<function=",
        after_name=">\n",
        end="</function>\n",
        key_start="<parameter=",
        key_end=">\n",
        value_end="\n</parameter>\n",
        quote="",
    ),
}


def layout_of(parser: str, template: str) -> CallLayout | None:
    """The layout that one of mlx-lm's parsers reads, by the name of its module, as a chat template
    writes it; None if it is not known."""
    if parser in ("glm47", "laguna"):
        return _tagged(line="" if "</arg_key><arg_value>" in template else "\n")
    if parser == "mistral":
        if "[ARGS]" in template:
            return CallLayout(after_name="[ARGS]", between="[TOOL_CALLS]")
        return replace(_MISTRAL_LIST, start=" [" if "[TOOL_CALLS] [" in template else "[")
    return _BY_PARSER.get(parser)
