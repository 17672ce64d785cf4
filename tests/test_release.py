"""What is released: wheels that any machine builds alike, what they hold, and a formula of them."""

import re
import shutil
import subprocess
from email import message_from_string
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hatchling.build import build_wheel
from packaging.requirements import Requirement

from akunu_py.cli.parser import parse
from akunu_py.package import __version__

ROOT = Path(__file__).parents[1]
LINUX = {"platform_system": "Linux", "platform_machine": "x86_64", "extra": ""}
MAC = {"platform_system": "Darwin", "platform_machine": "arm64", "extra": ""}


def build(folder: Path) -> Path:
    folder.mkdir()
    return folder / build_wheel(str(folder))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return build(tmp_path_factory.mktemp("dist") / "first")


def test_a_wheel_is_built_alike_at_another_time(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert build(tmp_path / "again").read_bytes() == wheel.read_bytes()


def test_a_wheel_has_the_package_and_its_model_and_nothing_else(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert all(name.startswith("akunu_py/") for name in names)
    files = {path.relative_to(ROOT) for path in (ROOT / "akunu_py").rglob("*.py")}
    assert names >= {path.as_posix() for path in files}
    model = {f"akunu_py/bundled/ember/{path.name}" for path in (ROOT / "models/ember").iterdir()}
    assert names >= model
    kinds = {Path(name).suffix for name in names - model}
    assert kinds == {".py", ".typed", ".json", ".html", ".css", ".js"}


def test_linux_gets_a_backend_and_a_blas_without_an_extra(wheel: Path) -> None:
    file = ZipFile(wheel).read(f"akunu_py-{__version__}.dist-info/METADATA")
    needed = list(map(Requirement, message_from_string(file.decode()).get_all("Requires-Dist", [])))

    def found(machine: dict[str, str]) -> set[str]:
        return {it.name for it in needed if it.marker is None or it.marker.evaluate(machine)}

    assert next(it for it in needed if it.name == "mlx").extras == {"cpu"}
    assert found(LINUX) - found(MAC) == {"mkl"}
    assert "pytest" not in found(LINUX)


def homebrew() -> Any:
    """The script as a module; a folder called `packaging` is no package beside the library."""
    spec = spec_from_file_location("homebrew", ROOT / "packaging" / "homebrew.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def locked(name: str, *wheels: str) -> dict[str, Any]:
    hashes = {"sha256": f"hash of {name}"}
    return {"name": name, "wheels": [{"url": f"https://a/{it}", "hashes": hashes} for it in wheels]}


def test_a_formula_has_the_best_wheel_of_each_package() -> None:
    own = "akunu_py-1.0.0-py3-none-any.whl"
    older, newer = (f"numpy-2.4.6-cp313-cp313-macosx_{it}_0_arm64.whl" for it in (11, 14))
    lock = {"packages": [locked("numpy", older, newer), locked("akunu-py", own)]}
    text = homebrew().formula(lock)
    assert f'  url "https://a/{own}",\n      using: :nounzip\n  sha256 "hash of akunu-py"' in text
    assert (
        f'  resource "numpy" do\n    url "https://a/{newer}",\n        using: :nounzip\n'
        '    sha256 "hash of numpy"\n  end\n'
    ) in text
    assert older not in text
    assert 'resource "akunu-py"' not in text
    if ruby := shutil.which("ruby"):
        subprocess.run([ruby, "-c"], input=text, text=True, check=True, capture_output=True)


def test_the_commands_of_the_page_parse() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ akunu-py ([^>#\n]+)", page, re.MULTILINE)
    assert len(commands) >= 9
    for command in commands:
        parse(command.split())
