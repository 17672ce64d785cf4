"""Cost curves of four kinds of machine, in milliseconds of a made-up model."""

from collections.abc import Callable

from akunu_py.planning.cost_curve import CostCurve, CostLevel


def curve(cost: Callable[[int], float], *, overlap: float = 0.0) -> CostCurve:
    """A curve whose rounds of M tokens take `cost(M)` ms.

    Args:
        cost: of a round; the same at every context.
        overlap: how much less a pipelined step takes than a round of one token, in ms.
    """
    rounds = tuple((size, cost(size) / 1000) for size in range(1, 34))
    return CostCurve((CostLevel(128, (cost(1) - overlap) / 1000, rounds),))


FLAT = curve(lambda size: 10.0 + 0.01 * size)
LINEAR = curve(lambda size: 10.0 * size)
# M4 Pro and M5 report steps like these: one more row of tiles costs as much as five more tokens.
STEPPED = curve(lambda size: 10.0 + 8.0 * ((size - 1) // 5), overlap=1.0)
M1_LIKE = curve(lambda size: 10.0 + 8.0 * (size - 1), overlap=1.0)
