"""Greeting: what a chat on a terminal says before its first prompt.

The bundled model says what it is for and offers requests to try. A model of the user's own is
described in one line once it is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from akunu_py.cli.settings import ChatSettings
from akunu_py.model.files import BUNDLED_MODEL
from akunu_py.options import Options

if TYPE_CHECKING:
    from akunu_py.engine import Engine

EXAMPLES: Final = (
    "Rename `x` to `total` in: def f(x): return x + 1",
    "Add a docstring to: def area(w, h): return w * h",
    "Make this function async: def fetch(url): return get(url)",
)
"""Requests that the bundled model answers right, alone and in this order."""

_MEBI: Final = 1 << 20


OPENING: Final = f"{BUNDLED_MODEL} is a small model that edits short Python code. Try one with Tab:"
CLOSING: Final = "A model of your own: --model FOLDER, or its hub name. /help lists commands."


@dataclass(frozen=True)
class Greeting:
    """What to say: `examples` of requests to try, or a line that `describe` makes of the loaded
    model; the empty greeting says nothing."""

    examples: tuple[str, ...] = ()
    describe: "Callable[[Engine], str] | None" = None


NO_GREETING: Final = Greeting()


def greeting_for(settings: ChatSettings) -> Greeting:
    """The greeting of a chat."""
    if settings.quiet:
        return NO_GREETING
    if settings.model.name == BUNDLED_MODEL and settings.model.adapter_path is None:
        return Greeting(EXAMPLES)
    return Greeting(describe=partial(describe_model, settings.options))


def describe_model(options: Options, engine: "Engine") -> str:
    """The loaded model in one line: its name, its size, its context, and whether drafting pays."""
    model = engine.model
    facts = (
        model.full_name,
        f"{model.size} parameters, {model.parameter_bytes / _MEBI:,.0f} MiB",
        f"context {engine.context_limit:,} tokens",
        _drafting(options, engine),
    )
    return " · ".join(facts)


def _drafting(options: Options, engine: "Engine") -> str:
    from akunu_py.bench.cost_report import CostReport  # noqa: PLC0415  (not for the first prompt)

    if not options.drafts:
        return "drafting is off"
    if engine.speculation.why_impossible:
        return "no drafting with this model"
    if options.num_draft_tokens is not None:
        return f"up to {options.num_draft_tokens} draft tokens per round"
    if (curve := engine.speculation.cost_curve) is None:
        return "drafting as far as it pays"
    payoff = CostReport({}, {}, curve).payoff
    if payoff.acceptance is None or not payoff.pays:
        return "drafting does not pay here"
    return f"drafting pays from {payoff.acceptance:.0%} acceptance"
