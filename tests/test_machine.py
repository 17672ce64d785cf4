"""How much memory a process may take, and what it says if it cannot run here."""

import gc
import os
import resource
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import pytest

from akunu_py.errors import BackendError
from akunu_py.machine import backend
from akunu_py.machine.backend import Backend
from akunu_py.machine.device_memory import (
    free_device_bytes,
    free_memory_bytes,
    installed_bytes,
    memory_is_short,
    wire_weights,
)
from akunu_py.package import CACHE_VARIABLE, cache_folder
from tests.metal import IS_SIMULATED

MB = 1 << 20


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def process(root: Path, group: str = "0::/") -> Path:
    """A process with 8,000 MB free memory and 100 MB of address space."""
    taken = 100 * MB // resource.getpagesize()
    return write(
        root,
        {
            "proc/meminfo": f"MemTotal: 9999999 kB\nMemAvailable:  {8000 << 10} kB",
            "proc/self/statm": f"{taken} 1 1 1 0 1 0",
            "proc/self/cgroup": group,
        },
    )


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_limits_of_the_process_bound_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: -1}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], -1))
    assert free_memory_bytes(process(tmp_path)) == 8000 * MB
    limits[limit] = 1000 * MB
    assert 500 * MB < free_memory_bytes(tmp_path) < 1000 * MB
    limits[limit] = MB
    assert free_memory_bytes(tmp_path) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="macOS says itself whether it is short")
def test_memory_is_short_before_it_is_gone(tmp_path: Path) -> None:
    meminfo = process(tmp_path) / "proc/meminfo"
    found = []
    for free in (installed_bytes(), installed_bytes() // 64):
        meminfo.write_text(f"MemAvailable: {free // 1024} kB\n")
        found.append(memory_is_short(tmp_path))
    assert found == [False, True]


V2 = {"memory.max": 3000 * MB, "memory.current": 2000 * MB,
      "memory.stat": f"anon 1\ninactive_file {300 * MB}\nactive_file {200 * MB}"}  # fmt: skip


@pytest.mark.parametrize(
    ("group", "place"),
    [
        ("0::/", "sys/fs/cgroup"),
        ("0::/a/b", "sys/fs/cgroup/a/b"),
        ("4:cpu:/\n0::/a/b", "sys/fs/cgroup/a"),
    ],
)
def test_control_groups_bound_what_is_free(tmp_path: Path, group: str, place: str) -> None:
    write(process(tmp_path, group), {f"{place}/{name}": text for name, text in V2.items()})
    assert free_memory_bytes(tmp_path) == 1500 * MB
    write(tmp_path, {f"{place}/memory.max": "max"})
    assert free_memory_bytes(tmp_path) == 8000 * MB


def test_weights_stay_quantized_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Backend("cpu", "a CPU", "mkl", 2)
    with monkeypatch.context() as limited:
        limited.setattr(resource, "getrlimit", lambda _: (1 << 20, -1))
        assert cpu.weight_layout("auto", 1 << 20) == "quantized"
    assert cpu.weight_layout("auto", 1 << 20) == "dense"


def test_a_device_that_may_not_be_used_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("No Metal device available")

    monkeypatch.setattr(mx, "device_info", refuse)
    with pytest.raises(BackendError, match=r"may not use the GPU.*: No Metal device"):
        backend._found.__wrapped__()


def test_free_memory_is_what_metal_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 3 * MB})
    monkeypatch.setattr(mx, "get_active_memory", lambda: MB)
    assert free_device_bytes() == 2 * MB
    monkeypatch.setattr(mx, "get_active_memory", lambda: 4 * MB)
    assert free_device_bytes() == 0
    monkeypatch.setattr(os, "sysconf", int)  # which knows none of these names
    assert installed_bytes() == 0


class Weights:
    """Something that may be wired."""


@pytest.mark.skipif(IS_SIMULATED, reason="begins without an Apple GPU")
def test_large_models_are_wired_once_and_as_long_as_they_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    wire_weights(Weights(), 90)
    assert not limits, "this device is no Apple GPU"
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 100})
    one, other, small = Weights(), Weights(), Weights()
    wire_weights(small, 50)
    assert not limits
    wire_weights(one, 60)
    wire_weights(other, 70)
    assert limits == [60, 100], "never more than is recommended"
    del one
    gc.collect()
    assert limits == [60, 100, 70]
    del other, small
    gc.collect()
    assert limits == [60, 100, 70, 0]


class TestCompileFolder:
    """Where MLX compiles for a CPU, and runs what it finds."""

    @pytest.fixture
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
        return folder

    def test_the_usual_folder_is_closed_to_others(self, temporary: Path) -> None:
        backend._choose_compile_folder()
        assert os.environ["TMPDIR"] == str(temporary)
        assert (temporary / "mlx").stat().st_mode & 0o777 == 0o700
        (temporary / "mlx").chmod(0o755)
        backend._choose_compile_folder()
        assert (temporary / "mlx").stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("kind", ["open", "foreign", "link", "file"])
    def test_a_folder_that_others_can_write_to_is_not_used(
        self, temporary: Path, kind: str
    ) -> None:
        planted = temporary / "mlx"
        if kind == "link":
            planted.symlink_to(temporary)
        elif kind == "file":
            planted.touch()
        else:
            planted.mkdir()
            planted.chmod(0o777 if kind == "open" else 0o755)
        if kind == "foreign":
            if os.geteuid():
                pytest.skip("only root makes folders of others")
            os.chown(planted, 65_534, 65_534)
        backend._choose_compile_folder()
        used = Path(os.environ["TMPDIR"])
        assert used.parent != temporary.parent
        assert used.stat().st_mode & 0o777 == 0o700

    def test_a_cache_that_others_can_write_to_is_refused(self, temporary: Path) -> None:
        (temporary / "mlx").touch()
        own = cache_folder() / "compiled"
        own.mkdir(parents=True)
        own.chmod(0o777)
        with pytest.raises(BackendError, match="that only this user can write to"):
            backend._choose_compile_folder()
