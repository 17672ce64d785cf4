"""What is released: wheels that any machine builds alike, and what they hold."""

from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.build import build_wheel
from packaging.requirements import Requirement

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
