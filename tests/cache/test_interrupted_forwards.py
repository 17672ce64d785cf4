"""Whatever ends a forward early, no later request is answered from what it left."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

import akunu_py
from akunu_py import Options
from akunu_py.engine import Engine
from akunu_py.model.loading import load_tokenizer
from akunu_py.model.target_model import TargetModel
from tests.architectures import config, make_network
from tests.planning.curves import FLAT

PROMPT = [7 * at % 120 for at in range(60)]
ANSWER = Options(max_tokens=12, drafter="ngram", num_draft_tokens=3)


def engine_of(name: str, folder: Path) -> Engine:
    network = make_network(name)
    model = TargetModel(
        network, load_tokenizer(str(folder)), config(name), name=name, layout="dense"
    )
    backend = akunu_py.load(str(folder)).backend
    return Engine(model, backend, calibrate=lambda *_: FLAT, prefill_step_size=16)


@pytest.mark.parametrize("after", [2, 6], ids=["in the prefill", "in the answer"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text"])
def test_a_broken_forward_leaves_no_trace(
    name: str,
    error: type[BaseException],
    after: int,
    tiny_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mx.disable_compile()
    engine = engine_of(name, tiny_model_dir)
    expected = engine.generate(PROMPT, ANSWER).token_ids
    engine.reset()
    layer = engine.model.network.layers[1]
    whole = type(layer).__call__
    left = iter(range(after))

    def interrupted(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        if self is layer and next(left, None) is None:
            raise error
        return whole(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(layer), "__call__", interrupted)
        with pytest.raises(error):
            engine.generate(PROMPT, ANSWER)
    assert engine.slots == ()
    assert engine.generate(PROMPT, ANSWER).token_ids == expected
    mx.enable_compile()
