"""The architecture's arrows, held: who may import what, told from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import akunu_py

PACKAGE = Path(akunu_py.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# Plain Python and NumPy: these run anywhere, so that policy can be tested without a model.
WITHOUT_MLX = (
    "drafting/",
    "planning/",
    "memory/",
    "bench/replay.py",
    "bench/replay_report.py",
    "bench/baselines/",
    "bench/curve_sources.py",
    "bench/measurement.py",
    "bench/samples.py",
    "decoding/draft_trimmer.py",
    "decoding/token_buffer.py",
    "decoding/verification.py",
    "sampling/chance.py",
    "sampling/grammar.py",
    "stats.py",
    "errors.py",
    "blas.py",
    "model_files.py",
    "text/stop.py",
)
NEEDS_A_MODEL = ("drafting/draft_model.py",)


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(path: Path) -> set[str]:
    """Every module that a file imports, functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_policy_does_not_know_mlx(path: Path) -> None:
    name = place(path)
    if name.startswith(WITHOUT_MLX) and name not in NEEDS_A_MODEL:
        heavy = {module for module in imports(path) if module.split(".")[0] in ("mlx", "mlx_lm")}
        assert not heavy


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_nothing_below_the_command_line_knows_a_terminal_or_http(path: Path) -> None:
    name = place(path)
    if not name.startswith(("cli/", "server/", "bench/", "__main__.py")):
        above = ("akunu_py.cli", "akunu_py.server", "akunu_py.bench")
        outside = ("rich", "prompt_toolkit", "starlette", "uvicorn", "argparse")
        for module in imports(path):
            assert not module.startswith(above)
            assert module.split(".")[0] not in outside


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_decoding_does_not_know_the_engine(path: Path) -> None:
    if place(path).split("/")[0] in ("decoding", "drafting", "planning"):
        assert not any(module.startswith("akunu_py.engine") for module in imports(path))


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_only_the_backend_knows_the_layers_of_a_device(path: Path) -> None:
    if not place(path).startswith(("cpu/", "backend.py")):
        assert not any(module.startswith("akunu_py.cpu") for module in imports(path))


def loaded_by(statement: str) -> set[str]:
    """The modules in a fresh interpreter after a statement."""
    script = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_no_model_library() -> None:
    loaded = loaded_by("import akunu_py")
    assert not loaded & {"mlx", "mlx.core", "mlx_lm", "transformers", "numpy", "rich"}


def test_policy_runs_without_mlx_installed() -> None:
    script = (
        "import sys; sys.modules['mlx'] = sys.modules['mlx_lm'] = None; "
        "import akunu_py.decoding.token_buffer; from akunu_py.drafting import make_drafter; "
        "d = make_drafter('ngram'); d.begin([1, 2, 3, 1, 2]); print(d.propose(4).tokens)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "(3, 1, 2, 3)"


def test_a_machine_without_mlx_is_told_so_in_a_sentence() -> None:
    script = "import sys; sys.modules['mlx.core'] = None; import akunu_py; akunu_py.load()"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].startswith(
        "akunu_py.errors.BackendError: MLX has no backend on this machine: install akunu-py[cpu]"
    )


def test_files_stay_readable() -> None:
    long = {place(path) for path in MODULES if len(path.read_text().splitlines()) > 400}
    assert not long
