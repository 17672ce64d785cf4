"""The boundaries of the architecture: what each file may import, read from the source."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import akunu_py

PACKAGE = Path(akunu_py.__file__).parent

# From the bottom up; a part imports only parts of lower rows.
LAYERS = (
    ("errors", "package", "tokens"),
    ("options",),
    ("machine", "text"),
    ("cache",),
    ("sampling", "model"),
    ("drafting", "prompt", "ranks"),
    ("memory",),
    ("round",),
    ("stats",),
    ("planning", "request"),
    ("decoding",),
    ("calibration",),
    ("answer",),
    ("engine", "event_stream"),
    ("worker", "loading"),
    ("server", "bench"),
    ("cli",),
    ("__init__", "__main__"),
)
RANKS = {part: rank for rank, row in enumerate(LAYERS) for part in row}

# Plain Python and NumPy: these run anywhere, so that policy can be tested without a model.
WITHOUT_MLX = (
    "cache/prefix_pool.py",
    "drafting/",
    "memory/",
    "planning/",
    "bench/replay.py",
    "bench/replay_report.py",
    "bench/baselines/",
    "bench/curve_sources.py",
    "bench/measurement.py",
    "bench/samples.py",
    "decoding/draft_session.py",
    "decoding/loop.py",
    "decoding/scheduler.py",
    "decoding/token_buffer.py",
    "decoding/verification.py",
    "sampling/random.py",
    "sampling/logprobs.py",
    "options.py",
    "request.py",
    "round.py",
    "stats.py",
    "tokens.py",
    "errors.py",
    "machine/blas.py",
    "model/files.py",
    "text/stop.py",
)
# These import MLX only in functions, so that they load quickly and can report its absence.
LOADS_WITHOUT_MLX = (
    "cache/prefix_pool.py",
    *WITHOUT_MLX,
    "text/",
    "worker.py",
    "event_stream.py",
    "server/",
    "cli/",
    "machine/backend.py",
)
NEEDS_MLX = ("drafting/draft_model.py",)
ABOVE_THE_LIBRARY = ("cli/", "server/", "bench/", "__main__.py")
TERMINAL_OR_HTTP = {"rich", "prompt_toolkit", "starlette", "uvicorn", "httptools", "argparse"}


def files(*places: str, but: tuple[str, ...] = ()) -> list[str]:
    """The files in some places, relative to the package."""
    found = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    unknown = [place for place in places if not any(file.startswith(place) for file in found)]
    assert not unknown, f"no files in {unknown}"
    return [file for file in found if file.startswith(places) and not file.startswith(but)]


def part_of(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


@cache
def imports(file: str) -> frozenset[str]:
    """Every module that a file imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "akunu_py":
            found |= {f"akunu_py.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return frozenset(found)


def roots(file: str) -> set[str]:
    return {module.partition(".")[0] for module in imports(file)}


def own_parts(file: str) -> set[str]:
    """The other parts of the package that a file imports."""
    parts = {module.split(".")[1] for module in imports(file) if module.startswith("akunu_py.")}
    return parts - {part_of(file)}


@pytest.mark.parametrize("file", [file for file in files("") if own_parts(file)])
def test_every_import_points_down(file: str) -> None:
    upwards = {part for part in own_parts(file) if RANKS[part] >= RANKS[part_of(file)]}
    assert not upwards


@pytest.mark.parametrize("file", files(*WITHOUT_MLX, but=NEEDS_MLX))
def test_policy_does_not_know_mlx(file: str) -> None:
    assert not roots(file) & {"mlx", "mlx_lm"}


@pytest.mark.parametrize("file", files("", but=ABOVE_THE_LIBRARY))
def test_the_library_does_not_know_a_terminal_or_http(file: str) -> None:
    assert not roots(file) & TERMINAL_OR_HTTP


def test_only_loading_knows_the_layers_of_a_device() -> None:
    used = [
        file
        for file in files("", but=("model/cpu/",))
        if any(module.startswith("akunu_py.model.cpu") for module in imports(file))
    ]
    assert used == ["loading.py"]


def test_every_library_is_declared() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["plot"]]
    names = {re.split(r"\W", line.replace("-", "_"), maxsplit=1)[0] for line in declared}
    used = set().union(*map(roots, files(""))) - set(sys.stdlib_module_names) - {"akunu_py"}
    assert used <= names


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a new interpreter."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_importing_the_package_loads_no_model_library() -> None:
    loaded = set(run_python("import sys, akunu_py; print(*sys.modules)").stdout.split())
    assert "akunu_py" in loaded
    assert not loaded & {"mlx", "mlx.core", "mlx_lm", "transformers", "numpy", "rich"}


def test_policy_loads_and_runs_without_mlx_installed() -> None:
    loading = files(*LOADS_WITHOUT_MLX, but=NEEDS_MLX)
    modules = [file.removesuffix(".py").replace("/", ".") for file in loading]
    run = run_python(
        "import sys, importlib; sys.modules['mlx'] = sys.modules['mlx_lm'] = None\n"
        f"for module in {modules}: importlib.import_module(f'akunu_py.{{module}}')\n"
        "from akunu_py.drafting import make_drafter\n"
        "d = make_drafter('ngram'); d.begin([1, 2, 3, 1, 2]); print(d.propose(4).tokens)"
    )
    assert run.stderr == ""
    assert run.stdout.strip() == "(3, 1, 2, 3)"


def test_a_machine_without_mlx_is_reported_in_a_sentence() -> None:
    run = run_python("import sys; sys.modules['mlx.core'] = None; import akunu_py; akunu_py.load()")
    assert run.stderr.splitlines()[-1].startswith(
        "akunu_py.errors.BackendError: MLX has no backend on this machine: install akunu-py[cpu]"
    )
