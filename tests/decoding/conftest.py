"""A model that the tests of sequences in company share."""

import pytest

from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from tests.decoding.company import SMALLEST
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session", params=["fused", "as mlx-lm has it"])
def smallest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TargetModel:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "smallest", **SMALLEST)
    model = load_target(str(folder), find_backend())
    if request.param != "fused":
        model.network = model.original
    return model
