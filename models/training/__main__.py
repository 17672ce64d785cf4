"""Everything from nothing to full-precision weights; steps that are done are not repeated.

    python -m models.training [--work FOLDER] [--tiny]

Stop it at any time: the next start goes on from the last checkpoint. `quantize` comes after it,
in the environment that has mlx-lm.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from models.training import corpus, tokenizer
from models.training.build import build
from models.training.export import export
from models.training.recipes import EMBER, TINY, Recipe
from models.training.train import train

WORK = Path(__file__).parent / "work"


def make_corpus(work: Path, _recipe: Recipe) -> None:
    """The corpus, as files in the work folder."""
    sizes = corpus.write(work)
    print(", ".join(f"{name} {size:,} characters" for name, size in sizes.items()))


def make_tokenizer(work: Path, recipe: Recipe) -> None:
    """The tokenizer, learned from the training files that are not tests."""
    texts = (file.text for file in corpus.read(work, "training") if not file.is_test)
    tokenizer.write(tokenizer.train(texts, vocab_size=recipe.shape.vocab_size), work / "tokenizer")


def make_shards(work: Path, recipe: Recipe) -> None:
    """The examples, tokenized."""
    for name, count in build(work, documents=recipe.documents).items():
        print(f"{name:12} {count:12,} tokens")


STEPS: tuple[tuple[str, Callable[[Path, Recipe], None]], ...] = (
    ("corpus.jsonl", make_corpus),
    ("tokenizer/tokenizer.json", make_tokenizer),
    ("shards/probe.npz", make_shards),
)


def main() -> None:
    """Run what is missing, then train to the end and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK, help="folder for everything made")
    parser.add_argument("--tiny", action="store_true", help="the smallest run of every step")
    options = parser.parse_args()
    work, recipe = options.work, TINY if options.tiny else EMBER
    work.mkdir(parents=True, exist_ok=True)
    for product, make in STEPS:
        if not (work / product).exists():
            print(f"making {product}", flush=True)
            make(work, recipe)
    train(work, recipe)
    print(f"wrote {export(work)}")


if __name__ == "__main__":
    main()
