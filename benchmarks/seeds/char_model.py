"""A character-level Llama of nanoGPT's size, trained from nothing and kept as a model folder.

A text and a recipe come in, a folder that loads as any other model goes out. A model that was
trained once is found again under a fingerprint of both. The folder is readable by the user alone,
because the model was made from the user's text.
"""

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.optimizers import AdamW
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models

from akunu_py.bench.measurement import Progress
from akunu_py.errors import InvalidRequestError
from akunu_py.package import CACHE_VARIABLE, cache_folder
from benchmarks.seeds.char_text import CharText

_FORMAT: Final = 1
_FACTS: Final = "training.json"
_VALIDATION_BATCHES: Final = 16

PUBLISHED_STEPS: Final = 120


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Size, steps, learning rate and the number of characters of a step are those of "Trading
    accuracy for parallelism". Its 8 blocks of 64 became 4 of 128, because answers are longer
    here; `intermediate_size` gives a Llama's MLP about as many parameters as nanoGPT's.

    Attributes:
        steps: how many steps of AdamW.
        learning_rate: the same at all steps.
        batch: blocks of a step.
        block: characters of a block; also the model's context.
        seed: of the first weights, and of the choice of blocks.
    """

    steps: int = PUBLISHED_STEPS
    learning_rate: float = 1e-3
    batch: int = 4
    block: int = 128
    seed: int = 1337
    hidden_size: int = 32
    num_attention_heads: int = 4
    num_hidden_layers: int = 4
    intermediate_size: int = 96

    def config(self, vocabulary: int) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocabulary,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.block,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }


@dataclass(frozen=True)
class CharModel:
    """A trained model; `akunu_py.load` loads its folder. The loss is in nats per character, on text
    that it has not seen."""

    folder: Path
    steps: int
    parameters: int
    validation_loss: float
    training_s: float


def find_char_model(text: CharText, recipe: Recipe, progress: Progress | None = None) -> CharModel:
    """The model of a text and a recipe: loaded from disk if it is there, else trained now.

    Raises:
        InvalidRequestError: if the cache folder cannot be written to.
    """
    words = json.dumps([_FORMAT, text.fingerprint, asdict(recipe)])
    fingerprint = hashlib.sha256(words.encode()).hexdigest()[:12]
    folder = cache_folder() / "char-models" / f"char-{recipe.steps}-steps-{fingerprint}"
    try:
        if not folder.exists():
            _train_into(folder, text, recipe, progress)
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(
            f"The trained model cannot be kept in {folder.parent} ({error.strerror}); name another "
            f"cache folder in {CACHE_VARIABLE}."
        ) from error
    return CharModel(folder, **facts)


def _train_into(folder: Path, text: CharText, recipe: Recipe, progress: Progress | None) -> None:
    """Trains a model and moves its folder into place once it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=folder.parent))  # mode 0700
    try:
        begun = perf_counter()
        network = train(text, recipe, progress)
        facts = {
            "steps": recipe.steps,
            "parameters": sum(array.size for _, array in tree_flatten(network.parameters())),
            "validation_loss": validation_loss(network, text, recipe),
            "training_s": perf_counter() - begun,
        }
        _write_model(unfinished, network, text, recipe)
        (unfinished / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def train(text: CharText, recipe: Recipe, progress: Progress | None = None) -> nn.Module:
    """Trains a network on the training part of a text."""
    mx.random.seed(recipe.seed)
    draws = np.random.default_rng(recipe.seed)
    network = llama.Model(llama.ModelArgs.from_dict(recipe.config(len(text.alphabet))))
    stream = np.array(text.encode(text.training), np.int32)
    optimizer = AdamW(recipe.learning_rate, bias_correction=True)
    loss_and_gradients = nn.value_and_grad(network, _loss)
    for done in range(recipe.steps):
        starts = draws.integers(len(stream) - recipe.block, size=recipe.batch)
        _, gradients = loss_and_gradients(network, _blocks(stream, starts, recipe.block))
        optimizer.update(network, gradients)
        mx.eval(network.parameters(), optimizer.state)
        if progress:
            progress(done + 1, recipe.steps)
    return network


def validation_loss(network: nn.Module, text: CharText, recipe: Recipe) -> float:
    """The mean cross-entropy on the validation part of a text, in nats per character."""
    stream = np.array(text.encode(text.validation), np.int32)
    block = min(recipe.block, len(stream) - 1)
    starts = np.arange(0, len(stream) - block, block)[: _VALIDATION_BATCHES * recipe.batch]
    losses = [
        _loss(network, _blocks(stream, batch, block)).item() * len(batch)
        for batch in np.split(starts, range(recipe.batch, len(starts), recipe.batch))
    ]
    return cast(float, sum(losses) / len(starts))


def _loss(network: nn.Module, blocks: mx.array) -> mx.array:
    logits = network(blocks[:, :-1])
    return cast(mx.array, nn.losses.cross_entropy(logits, blocks[:, 1:], reduction="mean"))


def _blocks(stream: np.ndarray[Any, np.dtype[np.int32]], starts: Any, block: int) -> mx.array:
    """Blocks of a stream, each with the character that follows it, `[starts, block + 1]`."""
    return mx.array(stream[np.asarray(starts)[:, None] + np.arange(block + 1)])


def _write_model(folder: Path, network: nn.Module, text: CharText, recipe: Recipe) -> None:
    """Writes what mlx-lm loads: configuration, weights, and a tokenizer without end tokens."""
    alphabet = text.alphabet
    (folder / "config.json").write_text(json.dumps(recipe.config(len(alphabet))), encoding="utf-8")
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
