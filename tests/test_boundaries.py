"""The boundaries of the architecture: what each file may import, read from the source."""

import ast
import re
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import akunu_py
from tests.processes import run

PACKAGE = Path(akunu_py.__file__).parent

# From the bottom up; a part imports only parts of lower rows.
LAYERS = (
    ("errors", "package", "tokens"),
    ("option_words",),
    ("option_field",),
    ("options",),
    ("named_options",),
    ("machine", "text"),
    ("cache",),
    ("sampling", "model"),
    ("drafting", "prompt", "ranks"),
    ("memory",),
    ("rounds",),
    ("planning", "events"),
    ("edits",),
    ("decoding",),
    ("calibration", "sequence"),
    ("prompt_memory",),
    ("scheduler", "runner"),
    ("engine",),
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
    "edits/",
    "memory/",
    "planning/",
    "bench/replay.py",
    "calibration/cost_store.py",
    "bench/measurement.py",
    "bench/workloads.py",
    "decoding/draft_session.py",
    "decoding/loop.py",
    "sampling/random.py",
    "option_field.py",
    "option_words.py",
    "options.py",
    "named_options.py",
    "rounds.py",
    "events.py",
    "sequence.py",
    "scheduler.py",
    "tokens.py",
    "errors.py",
    "machine/blas.py",
    "model/files.py",
    "text/stream.py",
)
# These import MLX only in functions, so that they load quickly and can report its absence.
LOADS_WITHOUT_MLX = (
    "cache/prefix_pool.py",
    *WITHOUT_MLX,
    "text/",
    "worker.py",
    "server/",
    "cli/",
    "machine/backend.py",
    "machine/device_memory.py",
)
NEEDS_MLX = ("drafting/guessing.py",)
ABOVE_THE_LIBRARY = ("cli/", "server/", "bench/", "__main__.py")
TERMINAL_OR_HTTP = {"rich", "prompt_toolkit", "starlette", "uvicorn", "httptools", "argparse"}


def files(*places: str, but: tuple[str, ...] = ()) -> list[str]:
    """The files in some places, relative to the package."""
    found = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    unknown = [place for place in places if not any(file.startswith(place) for file in found)]
    assert not unknown, f"no files in {unknown}"
    return [file for file in found if file.startswith(places) and not file.startswith(but)]


def module_of(file: str) -> str:
    return "akunu_py." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(file): file for file in files("")}


def part_of(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


@cache
def imports(file: str) -> frozenset[str]:
    """Every module that a file imports, also in functions and for type checking alone."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            found |= names or {node.module}
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


def test_no_files_import_one_another_in_a_circle() -> None:
    imported = {
        file: {MODULES[name] for name in imports(file) & set(MODULES)} for file in files("")
    }
    TopologicalSorter(imported).prepare()  # raises an error that names the circle


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
    assert used == ["model/loading.py"]


def test_every_library_is_declared_and_no_other() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    declared = (line.replace("-", "_") for line in project["dependencies"])
    names = {re.split(r"\W", line, maxsplit=1)[0] for line in declared}
    used = set().union(*map(roots, files(""))) - set(sys.stdlib_module_names) - {"akunu_py"}
    loaded = {"mkl", "httptools"}  # by blas.py as a library, and by a class of uvicorn
    assert used | loaded == names


def test_tests_do_not_import_benchmarks() -> None:
    tests = Path(__file__).parent
    statement = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    assert not [path for path in tests.rglob("*.py") if statement.search(path.read_text())]


def test_importing_the_package_loads_no_model_library() -> None:
    loaded = set(run("-c", "import sys, akunu_py; print(*sys.modules)")[1].split())
    assert "akunu_py" in loaded
    assert not loaded & {"mlx", "mlx.core", "mlx_lm", "transformers", "numpy", "rich"}


def test_policy_loads_and_runs_without_mlx_installed() -> None:
    loading = files(*LOADS_WITHOUT_MLX, but=NEEDS_MLX)
    modules = [module_of(file) for file in loading]
    _, out, err = run(
        "-c",
        "import sys, importlib; sys.modules['mlx'] = sys.modules['mlx_lm'] = None\n"
        f"for module in {modules}: importlib.import_module(module)\n"
        "from akunu_py.drafting import make_drafter\n"
        "d = make_drafter('ngram'); d.begin([1, 2, 3, 1, 2]); print(d.propose(4).tokens)",
    )
    assert err == ""
    assert out.strip() == "(3, 1, 2, 3)"


def test_a_machine_without_mlx_is_reported_in_a_sentence() -> None:
    script = "import sys; sys.modules['mlx.core'] = None; import akunu_py; akunu_py.load()"
    _, _, err = run("-c", script)
    assert err.splitlines()[-1].startswith(
        "akunu_py.errors.BackendError: MLX does not load here (import of mlx.core halted; None in "
        "sys.modules); install akunu-py again"
    )
