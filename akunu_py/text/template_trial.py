"""Renders the chat template on standard input once, with little time and memory.

`chat.py` runs this file in a process of its own: Python cannot interrupt `9**(9**9)`. A template
that takes too much ends it with a signal, or with `TOO_MUCH`.
"""

import resource
import sys
from contextlib import suppress
from typing import Final

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOO_MUCH: Final = 3
_LIMITS: Final = {resource.RLIMIT_CPU: 2, resource.RLIMIT_AS: 1 << 30}
"""Seconds and bytes: a usual template takes milliseconds, and with Python less than 100 MB."""
_MOST_CHARACTERS: Final = 1 << 24  # more than any context, for so short a conversation

if __name__ == "__main__":
    for kind, most in _LIMITS.items():
        with suppress(ValueError, OSError):  # macOS limits no memory
            resource.setrlimit(kind, (most, most))
    try:
        # As in transformers, which takes ten times as long to import.
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        asked = {"messages": [{"role": "user", "content": "?"}], "add_generation_prompt": True}
        is_over = len(sandbox.from_string(sys.stdin.read()).render(asked)) > _MOST_CHARACTERS
    except Exception as error:  # whatever else it raises, it ends
        is_over = isinstance(error, MemoryError)
    sys.exit(TOO_MUCH if is_over else 0)
