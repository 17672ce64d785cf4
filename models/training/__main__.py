"""Everything from nothing to finished weights; steps that are done are not repeated.

    python -m models.training [--work FOLDER] [--tiny] [--export-with PYTHON]

Stop it at any time: the next start repeats the step it was in, and training goes on from its last
checkpoint. PYTHON is an interpreter with mlx-lm, which training has no use for. With it, the
bundled model in `models/ember` is replaced, its card's list of sources included; without it, the
end is full precision in the work folder.
"""

import argparse
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from models.training import corpus
from models.training.build import build
from models.training.curriculum import CURRICULUM, Stage
from models.training.examples import EMBER
from models.training.export import export
from models.training.model import Shape
from models.training.train import train

WORK = Path(__file__).parent / "output"
DOCUMENTS, TINY_DOCUMENTS = 4000, 20
"""Times of these, invented examples are made (`build.INVENTED_KINDS`)."""
TINY_SHAPE = Shape(
    hidden_size=128,
    intermediate_size=192,
    num_layers=6,
    num_heads=2,
    num_kv_heads=1,
    max_positions=512,
)
TINY_STAGES = (
    Stage("copying", 4, 2, 128, {"repeats": 0.5, "code": 0.5}),
    Stage("edits", 4, 2, 256, {"edits": 0.6, "fim": 0.2, "questions": 0.2}, decays=True),
)


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
    work = (options.work or (WORK / "tiny" if options.tiny else WORK)).absolute()
    work.mkdir(parents=True, exist_ok=True)
    documents = TINY_DOCUMENTS if options.tiny else DOCUMENTS
    steps: dict[str, Callable[[], Mapping[str, int]]] = {
        "corpus": lambda: corpus.write(work),
        "shards": lambda: build(work, documents),
    }
    for name, make in steps.items():
        done = work / f"{name}.done"
        if not done.exists():
            print(f"making the {name}", flush=True)
            for part, size in make().items():
                print(f"{part:12} {size:12,}")
            done.touch()
    if options.tiny:
        train(work, TINY_SHAPE, TINY_STAGES, compiled=False)
    else:
        train(work, Shape(), CURRICULUM, compiled=shutil.which("c++") is not None)
    full = export(work)
    print(f"wrote {full}")
    if options.export_with:
        program = [str(options.export_with.absolute()), "-m", "models.training.export"]
        command = [*program, "quantize", str(full), "--to", str(EMBER)]
        subprocess.run(command, check=True, cwd=EMBER.parents[1])
        (EMBER / "DATA.md").write_text(corpus.sources_page(work), encoding="utf-8")


if __name__ == "__main__":
    main()
