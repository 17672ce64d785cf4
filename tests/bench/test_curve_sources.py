from pathlib import Path

import pytest

from akunu_py.bench.curve_sources import find_curves, measured_curves, published_curves
from akunu_py.calibration.cost_store import CostKey, CostStore
from akunu_py.errors import InvalidRequestError
from tests.planning.curves import STEPPED

KEY = CostKey("gpu", "Apple M9", None, 1, "1.0", "0.1.0", "ember", "f00", 1, "quantized")


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


def test_a_curve_measured_here_is_found_by_the_models_name(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, STEPPED)
    store.path(KEY).with_name("broken.json").write_text("{")
    (found,) = measured_curves("ember", store)
    assert (found.name, found.curve, found.relative) == ("here", STEPPED, False)
    assert "Apple M9" in found.about
    assert measured_curves("another", store) == []


def test_the_default_is_every_known_curve() -> None:
    names = [curve.name for curve in find_curves([], "a model never measured")]
    assert names == list(published_curves())


def test_unknown_costs_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="There is no cost curve m0; give one of here"):
        find_curves(["m0"], "ember")
    with pytest.raises(InvalidRequestError, match="run `bench cost` first"):
        find_curves(["here"], "a model never measured")
