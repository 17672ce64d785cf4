"""akunu_py: language models on MLX that answer faster because they verify drafts.

    import akunu_py

    engine = akunu_py.load()              # the bundled model, or a folder or a name on the hub
    print(engine.chat("Rename `x` to `total` in: def f(x): return x + 1").text)
    for event in engine.stream("def mean(values):", max_tokens=64, temperature=0.8):
        print(event.text, end="")

The names in `__all__` and `akunu_py.errors` are stable within a major version; others may change.
The model libraries are loaded only when they are used.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from akunu_py.errors import AkunuError
from akunu_py.machine.blas import load_blas
from akunu_py.options import Grammar, ModelOptions, Options
from akunu_py.package import __version__

load_blas()  # the one thing done at import, because it must come before MLX: see blas.py

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.events import Completion, Event
    from akunu_py.loading import load

__all__ = [
    "AkunuError",
    "Completion",
    "Engine",
    "Event",
    "Grammar",
    "ModelOptions",
    "Options",
    "__version__",
    "load",
]

_HOMES = {
    "Completion": "akunu_py.events",
    "Engine": "akunu_py.engine",
    "Event": "akunu_py.events",
    "load": "akunu_py.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        with suppress(ModuleNotFoundError):
            return import_module(f"akunu_py.{name}")
        raise AttributeError(f"module 'akunu_py' has no attribute {name!r}")
    if name in ("Engine", "load"):
        import_module("akunu_py.machine.backend").find_backend()  # says so where MLX has no backend
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
