"""Everything from nothing to finished weights; steps that are done are not repeated.

    python -m models.training [--work FOLDER] [--tiny] [--export-with PYTHON]

Stop it at any time: the next start repeats the step it was in, and training goes on from its last
checkpoint. PYTHON is an interpreter with mlx-lm, which training has no use for. With it, the
bundled model in `models/ember` is replaced, its card's curve and list of sources included; without
it, the end is full precision in the work folder.
"""

import argparse
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from models.training import corpus, tokenizer
from models.training.build import build
from models.training.data_table import page as data_page
from models.training.export import export
from models.training.plot import plot
from models.training.recipes import EMBER, TINY, Recipe
from models.training.train import train

ROOT = Path(__file__).parents[2]
WORK = Path(__file__).parent / "output"
BUNDLED = ROOT / "models" / "ember"


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


STEPS: Mapping[str, Callable[[Path, Recipe], None]] = {
    "corpus": make_corpus,
    "tokenizer": make_tokenizer,
    "shards": make_shards,
}


def bundle(work: Path, python: Path) -> None:
    """Replace the bundled model by the one in the work folder."""
    command = [str(python), "-m", "models.training.quantize"]
    subprocess.run([*command, "--work", str(work), "--to", str(BUNDLED)], check=True, cwd=ROOT)
    plot(work / "log.jsonl", BUNDLED / "training.svg")
    (BUNDLED / "DATA.md").write_text(data_page(work), encoding="utf-8")


def main() -> None:
    """Run what is missing, then train to the end and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder for everything made")
    parser.add_argument("--tiny", action="store_true", help="the smallest run of every step")
    parser.add_argument(
        "--export-with",
        type=Path,
        metavar="PYTHON",
        help="an interpreter with mlx-lm, to replace the bundled model",
    )
    options = parser.parse_args()
    if options.tiny and options.export_with:
        parser.error("the smallest run makes no model to bundle")
    recipe = TINY if options.tiny else EMBER
    work = (options.work or (WORK / "tiny" if options.tiny else WORK)).absolute()
    work.mkdir(parents=True, exist_ok=True)
    for name, make in STEPS.items():
        done = work / f"{name}.done"
        if not done.exists():
            print(f"making the {name}", flush=True)
            make(work, recipe)
            done.touch()
    train(work, recipe)
    print(f"wrote {export(work)}")
    if options.export_with:
        bundle(work, options.export_with.absolute())


if __name__ == "__main__":
    main()
