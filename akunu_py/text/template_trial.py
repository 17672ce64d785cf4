"""Renders the chat template on standard input once, with little time and memory.

`chat.py` runs this file in a process of its own, because Python cannot interrupt `9**(9**9)`. Only
a template that takes too much ends it with a code of its own, or with a signal.
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


def main() -> int:
    """Returns the exit code."""
    for kind, most in _LIMITS.items():
        with suppress(ValueError, OSError):  # macOS knows no limit of memory; its time ends, too
            resource.setrlimit(kind, (most, most))
    try:
        # As in transformers, which takes ten times as long to import.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        template = environment.from_string(sys.stdin.read())
        template.render(messages=[{"role": "user", "content": "?"}], add_generation_prompt=True)
    except MemoryError:
        return TOO_MUCH
    except Exception:
        return 0  # it ends, and that is all that is asked here
    return 0


if __name__ == "__main__":
    sys.exit(main())
