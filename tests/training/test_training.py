"""Training from nothing, at its smallest: tokenizer to quantized folder to a generated token."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from mlx_lm import load, stream_generate
from models.training.quantize import MODEL_FILES, quantize

from models.training.corpus import standard_library

ROOT = Path(__file__).parents[2]
SOURCE_FILES = 20


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
from models.training.guidance import guidance_loss
from models.training.model import Llama, Shape

torch.manual_seed(0)
model = Llama(Shape(vocab_size=64, num_layers=6))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
targets = torch.arange(39).repeat(len(model.model.guided), 4, 1) - 19
targets[:, :, :20] = -1
for _ in range(60):
    tokens = torch.randint(64, (4, 20)).repeat(1, 2)
    loss = guidance_loss(model.model(tokens[:, :-1], targets=targets)[1], targets)
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
most = torch.stack(shares, -1).masked_fill(torch.ones(260, 260).triu(1) > 0, -9e9).argmax(-1)
print((layer.looks_at(hidden, rotation, visible, 3) - most).abs().max().item())
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    layer.q_proj.weight *= 1000
    at = layer.looks_at(hidden, rotation, visible, 3)
    print(layer.log_shares(hidden, rotation, visible, 3, at).max().item())
"""


def test_the_shares_of_attention_make_up_one() -> None:
    share, looks, largest = map(float, in_training("-c", ATTENTION).split())
    assert share < 1e-4
    assert looks == 0
    assert largest <= 0  # also of large scores in few bits, or else the loss has no end


APART = """
import torch
from models.training.model import Llama, Shape

torch.manual_seed(0)
model = Llama(Shape(vocab_size=64, num_layers=6))
tokens, begins = torch.randint(64, (2, 30)), torch.zeros(2, 30, dtype=torch.long)
begins[:, 10:] = 10
targets = torch.full((len(model.model.guided), 2, 30), 12)
with torch.no_grad():
    together, shares = model.model(tokens, begins=begins, targets=targets)
    alone, same = model.model(tokens[:, 10:], targets=targets[:, :, 10:] - 10)
for both, one in ((together[:, 10:], alone), (shares[..., 12:], same[..., 2:])):
    print((both - one).abs().max().item())
"""


def test_the_examples_of_a_row_do_not_see_each_other() -> None:
    states, shares = map(float, in_training("-c", APART).split())
    assert states < 1e-4
    assert shares < 1e-3


CHOSEN = """
import torch
from models.training.model import Llama, Shape
from models.training.optimizer import Optimizer

model = Llama(Shape(vocab_size=64, num_layers=6))
optimizer = Optimizer(model)
for layers in ((), (2, 4), ()):
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    model.learn_only(layers)
    tokens = torch.randint(64, (2, 20))
    model(tokens, torch.ones_like(tokens, dtype=torch.bool)).square().sum().backward()
    optimizer.step(1.0)
    changed = {n for n, weights in model.state_dict().items() if not weights.equal(before[n])}
    chosen = [f"layers.{index}." for index in layers] or ["model."]
    assert changed == {name for name in before if any(part in name for part in chosen)}
"""


def test_only_the_chosen_layers_change() -> None:
    in_training("-c", CHOSEN)


SPELLING = """
import torch
import numpy as np
from models.training.examples import Shard
from models.training.model import Llama, Shape
from models.training.spelling import fit, spell

torch.manual_seed(0)
embedding, gain = torch.randn(500, 256), torch.rand(256) + 0.5
tokens = torch.randint(500, (4000,))
given = (embedding @ torch.randn(256, 256))[tokens] + torch.randn(4000, 256)
values, outputs = spell(given, tokens, embedding, gain)
written = given @ values.T @ outputs.T
said = (written * gain) @ embedding.T
assert values.shape == outputs.T.shape == (128, 256)
print((said.argmax(-1) == tokens).float().mean().item(), written.square().mean().item())

model = Llama(Shape(vocab_size=64, num_layers=6))
example = (np.random.default_rng(0).integers(64, size=300), np.ones(300, bool))
print(fit(model, Shard.of([example])))
"""


def test_heads_that_spell_write_the_token_they_look_at() -> None:
    right, loudness, fitted = map(float, in_training("-c", SPELLING).split())
    assert min(right, fitted) > 0.99
    assert loudness == pytest.approx(1.0, rel=1e-3)


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
    quantize(work / "full", target, bits=4)
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
from models.training.recipes import TINY
from models.training.train import Draws

class Drawn:
    def draw(self, step, **stage):
        return step, stage["rows"], stage["length"]

for begin in (0, 6, 9):
    draws = Draws(Drawn(), TINY.stages, begin)
    print([draws[index] for index in range(len(draws))])
"""


def test_a_resumed_run_draws_the_batches_that_are_left() -> None:
    whole, rest, none = in_training("-c", DRAWS).splitlines()
    assert whole.startswith("[(0, 2, 128), ")
    assert rest == "[(6, 2, 256), (7, 2, 256)]"
    assert none == "[]"


def test_wrong_answers_are_diagnosed(work: Path) -> None:
    lines = in_training("-m", "models.training.diagnose", "--work", str(work)).splitlines()
    counts = {line.split()[0]: int(line.split()[1]) for line in lines[:3]}
    assert list(counts) == ["right", "copying", "deciding"]
    assert sum(counts.values()) > 0
    layers = [line for line in lines if line.startswith("layer") and "told apart" in line]
    assert len(layers) == 6
    assert "told apart 1.000" in layers[0]  # the embedding of a token tells it from all others


def test_a_finished_run_starts_again_without_repeating_a_step(work: Path) -> None:
    before = (work / "checkpoint.pt").read_bytes()
    (work / "shards.done").unlink()  # as if it had been stopped there
    said = run_training(work)
    assert "making the shards" in said
    assert "making the tokenizer" not in said
    assert (work / "checkpoint.pt").read_bytes() == before


def test_no_path_of_the_machine_is_in_the_exported_files(work: Path) -> None:
    for file in (work / "full").iterdir():
        assert str(work).encode() not in file.read_bytes(), file.name


def test_a_finished_model_is_trained_further_with_its_own_tokenizer(tmp_path: Path) -> None:
    ember, stage = ROOT / "models" / "ember", "copying"
    start = ("-m", "models.training.start", "--from", str(ember), "--stage", stage)
    assert in_training(*start, "--work", str(tmp_path)) == "step 0\n"
    assert (tmp_path / "tokenizer.done").exists()
    for name in ("tokenizer.model", "tokenizer.json"):
        assert (tmp_path / "tokenizer" / name).read_bytes() == (ember / name).read_bytes()


AVERAGE = """
import sys
from pathlib import Path
import torch
from models.training.average import average

begin, end = map(Path, sys.argv[1:])
torch.save({"model": {"a": torch.zeros(3)}, "optimizer": {}, "step": 1}, begin)
torch.save({"model": {"a": torch.ones(3)}, "optimizer": {}, "step": 2}, end)
average(begin, end, 0.75)
mean = torch.load(end, weights_only=True)
assert mean["model"]["a"].tolist() == [0.75] * 3
assert (mean["optimizer"], mean["step"]) == (None, 2)
"""


def test_the_average_takes_its_share_of_the_later_weights(tmp_path: Path) -> None:
    checkpoints = [str(tmp_path / name) for name in ("begin.pt", "end.pt")]
    subprocess.run([training_python(), "-c", AVERAGE, *checkpoints], cwd=ROOT, check=True)
