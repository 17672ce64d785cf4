"""What the chat templates of gpt-oss and DeepSeek write and refuse, in short, and their tokens.

`AKUNU_TEMPLATES` names a folder with the models' own, as `*.jinja`, to test with as well.
"""

import json
import os
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from akunu_py.engine import Engine
from akunu_py.loading import load
from tests.tiny_model import write_tiny_model

GPT_OSS = """
{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort or "medium") + "<|end|>" }}
{%- set system = messages[0].role == "system" %}
{%- if system or tools %}
    {{- "<|start|>developer<|message|>" + (messages[0].content if system else "") }}
    {%- for tool in tools or [] %}
        {{- "// " + tool.function.description + "\\ntype " + tool.function.name + "\\n" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set called = namespace(name=none) %}
{%- for message in (messages[1:] if system else messages) %}
    {%- if message.role == "assistant" %}
        {%- if "<|channel|>" in message.content or "<|channel|>" in (message.thinking or "") %}
            {{- raise_exception("a message has tags of channels") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("both content and thinking") }}
            {%- elif message.content or message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" }}
                {{- message.content or message.thinking }}{{ "<|end|>" }}
            {%- endif %}
            {%- set called.name = message.tool_calls[0].function.name %}
            {{- "<|start|>assistant to=functions." + called.name + "<|channel|>commentary json" }}
            {{- "<|message|>" + message.tool_calls[0].function.arguments | tojson + "<|call|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set called.name = none %}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if called.name is none %}{{ raise_exception("no call before a result") }}{% endif %}
        {{- "<|start|>functions." + called.name + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content | tojson + "<|end|>" }}
    {%- else %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}
"""

_DEEPSEEK = """
{%- set ns = namespace(last="") %}
{{- messages[0].content if messages[0].role == "system" else "" }}
{%- for message in messages %}
    {%- if ns.last == "tool" and message.role != "tool" %}{{ "<｜tool▁outputs▁end｜>" }}{% endif %}
    {%- if message.role == "user" %}
        {{- "<｜User｜>" + message.content }}
    {%- elif message.role == "assistant" %}
        {{- "<｜Assistant｜>SAID" if ns.last == "user" else "" }}
        {{- message.content.split("</think>")[-1] }}
        {%- for call in message.tool_calls or [] %}
            {{- "<｜tool▁calls▁begin｜>" if loop.first else "BETWEEN" }}
            {{- "BEFORE" + call.function.name + "AFTER" + call.function.arguments + "END" }}
            {{- "<｜tool▁calls▁end｜>" if loop.last else "" }}
        {%- endfor %}
        {{- "<｜end▁of▁sentence｜>" }}
    {%- elif message.role == "tool" %}
        {{- "BETWEEN" if ns.last == "tool" else "<｜tool▁outputs▁begin｜>" }}
        {{- "<｜tool▁output▁begin｜>" + message.content + "<｜tool▁output▁end｜>" }}
    {%- endif %}
    {%- set ns.last = message.role %}
{%- endfor %}
{%- if ns.last == "tool" %}{{ "<｜tool▁outputs▁end｜>" }}{% endif %}
{%- if add_generation_prompt and ns.last == "user" %}{{ "<｜Assistant｜>" + OPENED }}{% endif %}
"""


def _filled(**pieces: str) -> str:
    template = _DEEPSEEK
    for name, piece in pieces.items():
        template = template.replace(name, piece)
    return template


_FENCED = {
    "BEFORE": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "AFTER": "\\n```json\\n",
    "END": "\\n```<｜tool▁call▁end｜>",
    "BETWEEN": "\\n",
}
_PLAIN = {
    "BEFORE": "<｜tool▁call▁begin｜>",
    "AFTER": "<｜tool▁sep｜>",
    "END": "<｜tool▁call▁end｜>",
    "BETWEEN": "",
}
TEMPLATES = {
    "gpt-oss": GPT_OSS,
    "deepseek v3": _filled(**_FENCED, SAID="", OPENED="''"),
    "deepseek r1": _filled(**_FENCED, SAID="", OPENED="'<think>\\n'"),
    "deepseek v3.1": _filled(
        **_PLAIN, SAID="</think>", OPENED="('<think>' if thinking else '</think>')"
    ),
}
TEMPLATES |= {
    path.stem: path.read_text()
    for path in Path(os.environ.get("AKUNU_TEMPLATES", "-")).glob("*.jinja")
}
_CONTROL = ("start", "end", "message", "channel", "constrain", "call", "return")
_WORDS = (
    "begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁sep",
    *(f"tool▁{what}▁{end}" for what in ("calls", "call", "outputs", "output")
      for end in ("begin", "end")),
)  # fmt: skip


def templated_engine(folder: Path, template: str) -> Engine:
    """The tiny model with a chat template, and the tokens that it is written for."""
    write_tiny_model(folder, max_position_embeddings=1 << 15)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = [f"<｜{word}｜>" for word in _WORDS] + ["<think>", "</think>"]
    if "<|channel|>" in template:
        tokenizer.add_special_tokens([f"<|{word}|>" for word in _CONTROL])
    else:
        tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = map(tokenizer.token_to_id, ("<|return|>", "<|call|>", "<｜end▁of▁sentence｜>"))
    changes = {
        "tokenizer_config.json": {"chat_template": template},
        "config.json": {"eos_token_id": [end for end in ends if end is not None]},
    }
    for name, changed in changes.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    return load(str(folder))
