"""What is kept of a measurement, under which key, and what is not trusted."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from time import time

import pytest

from akunu_py.calibration.cost_store import (
    CostKey,
    CostStore,
    expected_curve,
    find_curves,
    published_curves,
)
from akunu_py.errors import InvalidRequestError
from akunu_py.package import CACHE_VARIABLE, cache_folder
from akunu_py.planning.cost_curve import DOUBTFUL, MEASURED
from tests.planning.curves import FLAT, STEPPED

KEY = CostKey("cpu", "Some CPU", "mkl", 4, "0.32.4", "0.1.0", "ember", "one", 10, "dense")


@pytest.fixture
def store(tmp_path: Path) -> CostStore:
    return CostStore(tmp_path / "costs")


def test_what_was_saved_is_loaded(store: CostStore) -> None:
    assert store.load(KEY) is None
    store.save(KEY, STEPPED)
    assert store.load(KEY) == STEPPED
    store.save(KEY, FLAT)
    assert store.load(KEY) == FLAT


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, device="cuda"),
        replace(KEY, chip="Another CPU"),
        replace(KEY, blas="openblas"),
        replace(KEY, threads=2),
        replace(KEY, mlx="0.33.0"),
        replace(KEY, model="wren"),
        replace(KEY, fingerprint="another"),
        replace(KEY, parameter_bytes=11),
        replace(KEY, layout="quantized"),
    ],
)
def test_every_part_of_the_key_separates_curves(store: CostStore, other: CostKey) -> None:
    store.save(KEY, STEPPED)
    assert store.load(other) is None
    store.save(other, FLAT)
    assert store.load(KEY) == STEPPED


def test_only_the_user_can_read_it(store: CostStore) -> None:
    store.save(KEY, STEPPED)
    path = store.path(KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b'{"format": "akunu-py cost curve", "version": 1}',
        b"[" * 100_000,
        b" " * (2 << 20),
    ],
)
def test_a_damaged_file_counts_as_none(store: CostStore, content: bytes) -> None:
    store.save(KEY, STEPPED)
    store.path(KEY).write_bytes(content)
    assert store.load(KEY) is None
    store.save(KEY, STEPPED)
    assert store.load(KEY) == STEPPED


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((place, "something else") for place in ("format", "version", "key", "curve")),
        *(("context", 10**400), ("step_s", 10**400), ("rounds_s", {"1": 10**400})),
    ],
)
def test_a_foreign_or_impossible_entry_counts_as_none(
    store: CostStore, place: str, value: object
) -> None:
    store.save(KEY, STEPPED)
    path = store.path(KEY)
    content = json.loads(path.read_text())
    (content if place in content else content["curve"]["levels"][-1])[place] = value
    path.write_text(json.dumps(content))
    assert store.load(KEY) is None
    assert store.curves_of(KEY.model) == []


def test_a_curve_with_another_machines_key_is_not_used(store: CostStore) -> None:
    other = replace(KEY, chip="Another CPU")
    store.save(other, STEPPED)
    store.path(other).rename(store.path(KEY))
    assert store.load(KEY) is None


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = CostStore(tmp_path / "file" / "costs")
    store.save(KEY, STEPPED)
    assert store.load(KEY) is None


def test_the_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert "akunu-py" in str(cache_folder())


@pytest.mark.parametrize(
    ("age_days", "load", "doubt"),
    [(0, 0.1, MEASURED), (40, 0.1, DOUBTFUL), (-2, 0.1, DOUBTFUL), (0, 3.0, DOUBTFUL)],
)
def test_old_and_busy_curves_are_doubted(
    store: CostStore, age_days: float, load: float, doubt: float
) -> None:
    curve = replace(STEPPED, measured_at=time() - 86_400 * age_days, load=load)
    store.save(KEY, curve)
    assert store.load(KEY) == replace(curve, doubt=doubt)


@pytest.mark.parametrize(
    ("device", "chip", "name"),
    [
        ("metal", "Apple M5 Max", "m5-max"),
        ("metal", "Apple M4 Max", "m4-pro-8b"),
        ("metal", "Apple M9", "m4-pro-8b"),
        ("cpu", "x86_64", "cpu-25m"),
    ],
)
def test_an_unmeasured_machine_begins_with_what_is_published(
    device: str, chip: str, name: str
) -> None:
    expected = expected_curve(device, chip)
    assert expected.doubt == DOUBTFUL
    assert expected.levels == published_curves()[name].curve.levels


def test_published_curves_are_relative_and_name_their_source() -> None:
    curves = published_curves()
    assert {"m4-pro", "m3-ultra", "m5-max", "cpu-25m"} <= set(curves)
    for name, named in curves.items():
        assert named.name == name
        assert named.relative
        assert named.source
        assert named.about
        assert named.curve.verify_s(1, 0) == pytest.approx(named.curve.decode_s(0), rel=0.01)
        assert named.curve.verify_s(8, 500) >= named.curve.verify_s(2, 500)


def test_costs_are_linear_between_published_points() -> None:
    curve = published_curves()["m4-pro-8b"].curve
    assert curve.verify_s(4, 0) == 1.47
    assert curve.verify_s(5, 0) == pytest.approx((1.47 + 2.07) / 2)
    assert curve.verify_s(16, 0) == pytest.approx(2.69 + 8 * (2.69 - 1.47) / 4)


def test_a_curve_measured_here_is_found_by_the_models_name(store: CostStore) -> None:
    store.save(KEY, STEPPED)
    store.path(KEY).with_name("broken.json").write_text("{")
    (found,) = store.curves_of("ember")
    assert (found.name, found.curve, found.relative) == ("here", STEPPED, False)
    assert "Some CPU" in found.about
    assert store.curves_of("another") == []


def test_the_default_is_every_known_curve() -> None:
    names = [curve.name for curve in find_curves([], "a model never measured")]
    assert names == list(published_curves())


def test_unknown_costs_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="There is no cost curve m0; choose one of here"):
        find_curves(["m0"], "ember")
    with pytest.raises(InvalidRequestError, match="run `bench cost` first"):
        find_curves(["here"], "a model never measured")
