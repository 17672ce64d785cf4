"""Training from nothing, at its smallest: corpus to quantized folder to a generated token."""

import json
import os
import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load, stream_generate

from models.training.corpus import standard_library
from models.training.examples import EMBER
from models.training.export import (
    BITS,
    GROUP_SIZE,
    HEAD_FILE,
    MODEL_FILES,
    dense_weights,
    quantize,
    quantize_head,
)

ROOT = Path(__file__).parents[2]
SOURCE_FILES = 10


def training_python() -> str:
    """The interpreter that has PyTorch; without one the test is skipped."""
    chosen = os.environ.get("AKUNU_TRAIN_PYTHON", str(ROOT / ".venv-train" / "bin" / "python"))
    if not Path(chosen).exists():
        pytest.skip("no training environment: run `make train-env`, or set AKUNU_TRAIN_PYTHON")
    return chosen


def in_training(*arguments: str) -> str:
    """What the training interpreter prints; one thread, since other tests run beside this one."""
    finished = subprocess.run(
        [training_python(), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def run_training(work: Path) -> str:
    return in_training("-m", "models.training", "--work", str(work), "--tiny")


GUIDANCE = """
import torch
from models.training.model import Llama, Shape, guidance_loss

torch.manual_seed(0)
sizes = dict(hidden_size=128, intermediate_size=192, num_heads=2, num_kv_heads=1)
model = Llama(Shape(vocab_size=64, num_layers=6, **sizes))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
targets = torch.arange(39).repeat(len(model.model.guided), 4, 1) - 19
targets[:, :, :20] = -1
for _ in range(120):
    tokens = torch.randint(64, (4, 20)).repeat(1, 2)[:, :-1]
    at = torch.arange(39)[None]
    shares = model.model(tokens, at, torch.zeros_like(tokens), targets)[1]
    loss = guidance_loss(shares, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def test_guided_heads_learn_to_look_where_they_are_told() -> None:
    assert float(in_training("-c", GUIDANCE)) < 0.7


ATTENTION = """
import torch
from models.training.model import Attention, RotaryTable, Shape, visible_tokens

torch.manual_seed(0)
shape = Shape()
layer, hidden = Attention(shape), torch.randn(2, 260, shape.hidden_size)
rotation = RotaryTable(shape)(torch.arange(260)[None])
visible = visible_tokens(torch.zeros(2, 260, dtype=torch.long))
shares = [
    layer.log_shares(hidden, rotation, visible, 3, torch.full((2, 260), at)) for at in range(260)
]
print((torch.stack(shares, -1).exp().tril().sum(-1) - 1).abs().max().item())
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    layer.q_proj.weight *= 1000
    at = torch.arange(260).expand(2, -1)
    looks = [layer.log_shares(hidden, rotation, visible, 3, at - n) for n in range(9)]
    print(torch.stack(looks).max().item())
"""


def test_the_shares_of_attention_make_up_one() -> None:
    share, largest = map(float, in_training("-c", ATTENTION).split())
    assert share < 1e-4
    assert largest <= 0  # also of large scores in few bits, or else the loss has no end


APART = """
import torch
from models.training.model import Llama, Shape

torch.manual_seed(0)
model = Llama(Shape(vocab_size=64, num_layers=6))
tokens, begins = torch.randint(64, (2, 30)), torch.zeros(2, 30, dtype=torch.long)
begins[:, 10:] = 10
targets = torch.full((len(model.model.guided), 2, 30), 12)
at, zero = torch.arange(30)[None], torch.zeros(2, 20, dtype=torch.long)
with torch.no_grad():
    together, shares = model.model(tokens, at, begins, targets)
    alone, same = model.model(tokens[:, 10:], at[:, :20], zero, targets[:, :, 10:] - 10)
for both, one in ((together[:, 10:], alone), (shares[..., 12:], same[..., 2:])):
    print((both - one).abs().max().item())
"""


def test_the_examples_of_a_row_do_not_see_each_other() -> None:
    states, shares = map(float, in_training("-c", APART).split())
    assert states < 1e-4
    assert shares < 1e-3


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a small corpus, trained to the end."""
    folder = tmp_path_factory.mktemp("training")
    sources = [file for file in standard_library() if not file.is_test]
    kept = [f for f in sources if not f.held_out][:SOURCE_FILES]
    unseen = [f for f in sources if f.held_out][: SOURCE_FILES // 2]
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as out:
        for split, files in (("training", kept), ("held_out", unseen)):
            for file in files:
                row = {"split": split, "package": file.package, "path": file.path}
                out.write(json.dumps({**row, "text": file.text}) + "\n")
    (folder / "corpus.done").touch()
    run_training(folder)
    return folder


def test_a_trained_model_quantizes_loads_and_generates(work: Path, tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    quantize(work / "full", target)
    assert sorted(file.name for file in target.iterdir()) == sorted(MODEL_FILES)
    model, tokenizer = load(str(target))[:2]
    (response,) = list(stream_generate(model, tokenizer, prompt="def f", max_tokens=1))
    assert response.generation_tokens == 1


def test_the_log_has_losses_by_kind(work: Path) -> None:
    records = [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 8
    assert {"edits", "fim"} & set(records[-1]["by_kind"])
    assert records[-1]["hours"] > 0
    assert records[-1]["tokens_per_s"] > 0


DRAWS = """
from models.training.__main__ import TINY_STAGES
from models.training.train import Draws

class Drawn:
    def draw(self, step, **stage):
        return step, stage["rows"], stage["length"]

for begin in (0, 6, 9):
    draws = Draws(Drawn(), TINY_STAGES, begin)
    print([draws[index] for index in range(len(draws))])
"""


def test_a_resumed_run_draws_the_batches_that_are_left() -> None:
    whole, rest, none = in_training("-c", DRAWS).splitlines()
    assert whole.startswith("[(0, 2, 128), ")
    assert rest == "[(6, 2, 256), (7, 2, 256)]"
    assert none == "[]"


def test_a_finished_run_starts_again_without_repeating_a_step(work: Path) -> None:
    before = (work / "checkpoint.pt").read_bytes()
    (work / "shards.done").unlink()  # as if it had been stopped there
    said = run_training(work)
    assert "making the shards" in said
    assert "making the corpus" not in said
    assert (work / "checkpoint.pt").read_bytes() == before


def test_no_path_of_the_machine_is_in_the_exported_files(work: Path) -> None:
    for file in (work / "full").iterdir():
        assert str(work).encode() not in file.read_bytes(), file.name


def test_a_finished_model_is_trained_further(tmp_path: Path) -> None:
    start = ("-m", "models.training.export", "start", str(EMBER), "--stage", "short edits")
    assert in_training(*start, "--work", str(tmp_path)) == "step 300\n"


CAUSAL = """
import torch
from models.training.head import Head
from models.training.model import Shape, visible_tokens

torch.manual_seed(0)
shape = Shape(hidden_size=128, intermediate_size=192, num_heads=2, num_kv_heads=1)
head = Head(shape)
for weights in head.parameters():
    torch.nn.init.normal_(weights, std=0.3)
begins, at = torch.zeros(1, 12, dtype=torch.long), torch.arange(12)[None]
embedded, hidden = torch.randn(2, 1, 12, 128)
states = head(embedded, hidden, at, visible_tokens(begins))
for inputs in (embedded, hidden):
    inputs[:, 7] += 1
changed = head(embedded, hidden, at, visible_tokens(begins))
for one, other in zip(states, changed):
    print(*(one - other).abs().amax((0, 2))[[6, 7, 8]].tolist())
"""


def test_a_draft_of_the_head_depends_on_no_later_pair() -> None:
    for step in in_training("-c", CAUSAL).splitlines():
        before, itself, after = map(float, step.split())
        assert before == 0.0
        assert min(itself, after) > 1e-3


def test_the_head_is_stored_in_few_bits(tmp_path: Path) -> None:
    matrix = mx.random.normal((8, 128), key=mx.random.key(0))
    mx.save_safetensors(str(tmp_path / "full.safetensors"), {"mtp.fc.weight": matrix})
    quantize_head(tmp_path / "full.safetensors", tmp_path)
    stored = mx.load(str(tmp_path / HEAD_FILE))
    assert isinstance(stored, dict)
    weight, scales, biases = (
        mx.array(stored[f"mtp.fc.{part}"]) for part in ("weight", "scales", "biases")
    )
    read = mx.dequantize(weight, scales, biases, group_size=GROUP_SIZE, bits=BITS)
    assert mx.allclose(read, matrix, atol=0.02)


def test_weights_of_a_finished_model_are_read_as_they_are_computed_with() -> None:
    stored = mx.load(str(EMBER / "model.safetensors"))
    assert isinstance(stored, dict)
    name = "model.layers.0.mlp.up_proj"
    weight, scales, biases = (
        mx.array(stored[f"{name}.{part}"]) for part in ("weight", "scales", "biases")
    )
    expected = mx.dequantize(weight, scales, biases, group_size=GROUP_SIZE, bits=BITS)
    assert np.allclose(dense_weights(EMBER)[f"{name}.weight"], np.array(expected))


MEAN = """
import sys
from pathlib import Path
import torch
from models.training.export import mean

begin, end = map(Path, sys.argv[1:])
torch.save({"model": {"a": torch.zeros(3)}, "optimizers": {"muon": 1}, "step": 1}, begin)
torch.save({"model": {"a": torch.ones(3)}, "optimizers": {"muon": 1}, "step": 2}, end)
mean(begin, end, 0.75)
saved = torch.load(end, weights_only=True)
assert saved["model"]["a"].tolist() == [0.75] * 3
assert (saved["optimizers"], saved["step"]) == ({}, 2)
"""


def test_the_mean_takes_its_share_of_the_later_weights(tmp_path: Path) -> None:
    in_training("-c", MEAN, str(tmp_path / "begin.pt"), str(tmp_path / "end.pt"))
