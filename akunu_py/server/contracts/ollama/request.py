"""What Ollama's two ways of answering are asked with alike, read into the engine's words."""

from dataclasses import fields, replace
from typing import Final

from akunu_py.options import Grammar, Options
from akunu_py.server.body import Body
from akunu_py.server.contract import Call
from akunu_py.server.contracts.llama.sampling import read_sampling
from akunu_py.server.reading import read_drafting, read_stops
from akunu_py.server.settings import Defaults

_EFFORTS: Final = ("low", "medium", "high")
OLLAMA_DEFAULTS: Final = Defaults(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0)


def read_options(call: Call) -> Options:
    """How to answer: `format`, and `options`, which are llama.cpp's under Ollama's defaults.

    Without a positive `num_predict` the answer goes on to the context's end. `num_ctx` changes
    nothing: the context is as long as the server's.

    Raises:
        BodyError: if a field cannot be served.
    """
    options = call.body.object("options")
    defaults = _over_ollamas(call.settings.defaults)
    wanted = options.integer("num_predict", default=defaults.max_tokens)
    drafter, drafts = read_drafting(options, defaults)
    return Options(
        max_tokens=wanted if wanted is not None and wanted > 0 else None,
        sampling=read_sampling(options, defaults, call.service.engine.tokenizer.end_tokens),
        stop=read_stops(options),
        drafter=drafter,
        num_draft_tokens=drafts,
        grammar=read_format(call.body),
    )


def read_format(body: Body) -> Grammar | None:
    """`format`: `json`, a JSON schema, or an empty string for none."""
    wanted = body.any("format")
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return Grammar.json_object()
    if not isinstance(wanted, dict):
        body.refuse("format", "must be `json` or a JSON schema")
    return Grammar.json_schema(wanted)


def read_think(body: Body) -> dict[str, bool | str]:
    """`think`, as the settings of a template: whether to think, or in a word how hard."""
    wanted = body.any("think")
    if isinstance(wanted, str):
        if wanted not in _EFFORTS:
            body.refuse("think", f"must be true, false, or one of {', '.join(_EFFORTS)}")
        return {"enable_thinking": True, "reasoning_effort": wanted}
    thinks = body.flag("think", default=None)
    return {} if thinks is None else {"enable_thinking": thinks}


def refuse_images(body: Body) -> None:
    """Raises BodyError if there is a picture to look at."""
    if body.values("images"):
        body.refuse("images", "cannot be served; this model reads nothing but text")


def _over_ollamas(defaults: Defaults) -> Defaults:
    """The server's own defaults, and Ollama's where it has none."""
    missing = [field.name for field in fields(defaults) if getattr(defaults, field.name) is None]
    return replace(defaults, **{name: getattr(OLLAMA_DEFAULTS, name) for name in missing})
