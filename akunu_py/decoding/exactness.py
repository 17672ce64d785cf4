"""`--exact`: forwards of one shape, so that a draft changes no bit of what is computed.

Forwards of different sizes are computed by different kernels. Their logits, and the keys and values
that they leave in the cache, differ in the last bits, so two close logits can change places. So an
exact answer is divided into blocks of `BLOCK_ROWS` positions, and every forward computes one whole
block: what is known of it, then the draft, then padding. A position always has the same row of a
forward of the same size over the same number of keys, and what stands after it is masked. So its
logits are the same with any draft and with none, if a kernel gives the same result twice. Thinking
Machines ("Defeating Nondeterminism in LLM Inference", 2025) get there by kernels with one order of
summation for all sizes; MLX has none.
"""

from typing import Final

BLOCK_ROWS: Final = 3
"""The rows of every forward of an exact answer; `benchmarks/exact.py` compares others.

By published costs of M3 to M5, three rows lose less where no draft fits than four do, and copies
gain nearly as much.
"""
