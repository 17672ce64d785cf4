"""The mean of the weights of two checkpoints of a run, in place of those of the second.

    python -m models.training.average BEGIN.pt END.pt --share 0.7

Weights of one origin lie close enough for that, and what one has lost the other still has
(Wortsman et al. 2022, "Model soups"). The optimizer's state is dropped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def average(begin: Path, end: Path, share: float) -> None:
    """Replace the weights in the checkpoint `end`; `share` is that of its own in the mean."""
    saved = torch.load(end, weights_only=True, map_location="cpu")
    before = torch.load(begin, weights_only=True, map_location="cpu")["model"]
    saved["model"] = {
        name: (1 - share) * before[name] + share * weights
        for name, weights in saved["model"].items()
    }
    torch.save({**saved, "optimizer": None}, end)


def main() -> None:
    """Average as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("begin", type=Path)
    parser.add_argument("end", type=Path)
    parser.add_argument("--share", type=float, required=True, help="of the later weights, 0 to 1")
    options = parser.parse_args()
    average(options.begin, options.end, options.share)


if __name__ == "__main__":
    main()
