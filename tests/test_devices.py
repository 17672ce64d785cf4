"""What depends on the device: a list, both sides of each branch, and the first hour on a Mac."""

import ast
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import akunu_py
from akunu_py import Options
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.cost_store import expected_curve
from akunu_py.calibration.measure import measure_and_store
from akunu_py.errors import ContextOverflowError, ModelLoadError
from akunu_py.machine import device_memory
from akunu_py.machine.backend import Backend, ModelShape, find_backend
from akunu_py.machine.device_memory import free_device_bytes, wire_weights, wired_bytes
from akunu_py.model.files import weight_bytes
from akunu_py.options import Sampling
from akunu_py.sampling.processors import waits_for_nucleus
from tests.metal import CHIP, IS_SIMULATED, simulate_metal
from tests.planning.curves import FLAT

PACKAGE = Path(akunu_py.__file__).parent
WIDE = ModelShape(16, 256, has_experts=False)
DEVICE_NAMES = {"device", "default_device", "platform", "_recommended_bytes"}

BRANCHES: dict[str, Callable[[Backend], Any]] = {
    "machine/backend.py: _found": lambda _: find_backend().device,
    "machine/backend.py: attention_edges": lambda machine: machine.attention_edges,
    "machine/backend.py: gpu_bytes": lambda machine: machine.gpu_bytes(1),
    "machine/backend.py: kv_form": lambda machine: machine.kv_form,
    "machine/backend.py: prefill_step": lambda machine: machine.prefill_step(
        WIDE, 100, cancellable=True
    ),
    "machine/backend.py: is_cpu": lambda machine: machine.is_cpu,
    "machine/backend.py: score_bytes": lambda machine: machine.score_bytes(WIDE, 1, 1),
    "machine/backend.py: warm_up_tokens": lambda machine: machine.warm_up_tokens,
    "machine/backend.py: weight_layout": lambda machine: machine.weight_layout("auto", 1),
    "machine/device_memory.py: free_device_bytes": lambda _: free_device_bytes(),
    "machine/device_memory.py: wire_weights": lambda _: wires(),
    "model/loading.py: _load_head": lambda machine: machine.is_cpu,
    "model/loading.py: finish": lambda machine: machine.is_cpu,
    "model/loading.py: load_target": lambda machine: machine.is_cpu,
    "calibration/measure.py: measure_and_store": lambda machine: machine.is_cpu,
    "calibration/cost_store.py: expected_curve": lambda machine: expected_curve(
        machine.device, "a chip"
    ),
    "sampling/processors.py: waits_for_nucleus": lambda _: waits_for_nucleus(
        Sampling(temperature=1.0, top_p=0.5), rows=1
    ),
}
"""Every function that looks at the device, and what it decides."""


class Replaced:
    """A network that another takes the place of."""

    def __init__(self, network: Any, events: list[str]) -> None:
        self._network, self._events = network, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._events.append("replaced")
        return self._network(*inputs, **named)


def wires() -> bool:
    """Whether a model that takes all memory is wired."""
    model = Replaced(None, [])
    wire_weights(model, 1 << 60)
    return wired_bytes() > 0


BY_OPERATING_SYSTEM = {
    "machine/blas.py: load_blas",
    "machine/device_memory.py: memory_is_short",
}
"""Those that look at the system; Linux is tested here, and CI runs both."""


def branches() -> set[str]:
    """All functions of the package in which a device is compared with something."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            if any(getattr(node, "attr", None) == "is_cpu" for node in ast.walk(function)):
                found.add(f"{path.relative_to(PACKAGE).as_posix()}: {function.name}")
            for compared in (node for node in ast.walk(function) if isinstance(node, ast.Compare)):
                sides = [getattr(side, "value", side) if isinstance(side, ast.NamedExpr) else side
                         for side in (compared.left, *compared.comparators)]  # fmt: skip
                called = [getattr(side, "func", side) for side in sides]
                names = {getattr(one, "attr", getattr(one, "id", None)) for one in called}
                if names & DEVICE_NAMES:
                    found.add(f"{path.relative_to(PACKAGE).as_posix()}: {function.name}")
    return found


def test_every_branch_by_device_is_listed() -> None:
    assert branches() == BRANCHES.keys() | BY_OPERATING_SYSTEM


@pytest.mark.skipif(IS_SIMULATED, reason="compares both")
@pytest.mark.parametrize("decide", BRANCHES.values(), ids=BRANCHES)
def test_each_branch_has_two_sides(
    decide: Callable[[Backend], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = decide(Backend("cpu", "a CPU"))
    simulate_metal(monkeypatch)
    assert decide(find_backend()) != on_cpu


def life_of_a_large_model(patch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """What a large model does on a Mac with little memory, in order."""
    weights = akunu_py.load(str(folder)).model.parameter_bytes
    patch.setattr(mx, "get_active_memory", lambda: 0)  # other tests have models, too
    patch.setitem(CHIP, "max_recommended_working_set_size", 3 * weights // 2)
    simulate_metal(patch)
    events: list[str] = []
    patch.setattr(device_memory, "_wired", {})
    patch.setattr(mx, "set_wired_limit", lambda size: events.append("wired" if size else "unwired"))

    def measure(*_: object, **__: object) -> Any:
        events.append("measured")
        return FLAT

    patch.setattr(calibration, "measure_cost_curve", measure)
    engine = akunu_py.load(str(folder), calibrate=measure_and_store)
    for _ in range(2):
        engine.generate("one two", Options(4))
        events.append("answered")
    engine.model.network = Replaced(engine.model.network, events)
    engine.generate("one two", Options(1))
    del engine
    gc.collect()
    return events


def test_weights_are_wired_once_before_they_are_measured_and_until_the_end(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = ["wired", "measured", "answered", "answered", "replaced", "unwired"]
    assert life_of_a_large_model(monkeypatch, tiny_model_dir) == life


def test_weights_that_do_not_fit_are_refused(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHIP, "max_recommended_working_set_size", 1000)
    simulate_metal(monkeypatch)
    with pytest.raises(ModelLoadError, match=r"need 0\.0 GiB .* 0\.0 GiB are free: quit .*_limit"):
        akunu_py.load(str(tiny_model_dir))


def test_dense_weights_that_do_not_fit_are_refused(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = weight_bytes(tiny_model_dir)
    monkeypatch.setattr("akunu_py.model.loading.free_device_bytes", lambda: packed + 1)
    monkeypatch.setattr("akunu_py.model.loading.weight_bytes", lambda _: packed // 8)
    akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), weights="dense"))
    monkeypatch.setattr("akunu_py.model.loading.free_device_bytes", lambda: packed // 4)
    with pytest.raises(ModelLoadError, match="fewer weights or bits"):
        akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), weights="dense"))


class TestMemory:
    """Prompts that may not fit, with whatever is said to be free."""

    @pytest.fixture
    def engine(self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> akunu_py.Engine:
        monkeypatch.setattr("akunu_py.prompt_memory._LARGE_BYTES", 0)
        return akunu_py.load(str(tiny_model_dir))

    @staticmethod
    def free(monkeypatch: pytest.MonkeyPatch, nbytes: float) -> None:
        monkeypatch.setattr("akunu_py.prompt_memory.free_device_bytes", lambda: nbytes)

    def test_what_would_fit_is_told(
        self, engine: akunu_py.Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.free(monkeypatch, 1.2 * engine.model.cache_bytes(512))
        with pytest.raises(ContextOverflowError, match="tokens fit") as refused:
            engine.generate([5] * 900, Options(4))
        assert refused.value.tokens == 900
        assert refused.value.limit is not None
        assert 300 < refused.value.limit < 900
        assert engine.generate([5] * refused.value.limit, Options(4)).token_ids

    def test_idle_slots_give_their_memory_back(
        self, engine: akunu_py.Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.free(monkeypatch, 1e12)
        engine.generate([5] * 900, Options(4))
        assert len(engine.slots) == 1
        self.free(monkeypatch, 1)
        engine.generate([6] * 800, Options(4))
        assert len(engine.slots) == 1
        self.free(monkeypatch, 1e12)
        engine.generate([7] * 300, Options(4))
        assert len(engine.slots) == 2, "there is memory again"

    def test_scores_of_what_is_computed_already_are_not_counted(
        self, engine: akunu_py.Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Backend, "score_bytes", lambda _, __, rows, keys: 1e6 * rows * keys)
        self.free(monkeypatch, 1e12)
        engine.generate([5] * 700, Options(4))
        self.free(monkeypatch, 1e10)
        assert engine.generate([5] * 705, Options(4)).token_ids
        with pytest.raises(ContextOverflowError):
            engine.generate([6] * 705, Options(4))
