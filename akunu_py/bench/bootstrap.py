"""Bootstrap: how sure a median is, told from the measurements themselves. Plain NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from akunu_py.errors import InvalidRequestError

CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 2000


@dataclass(frozen=True)
class Interval:
    """A median, and the bounds that it lies between at a confidence of 95%."""

    median: float
    low: float
    high: float

    @classmethod
    def of_median(cls, values: Sequence[float]) -> Self:
        """The percentile bootstrap's interval; the same for the same values.

        Raises:
            InvalidRequestError: if there are no values.
        """
        if not values:
            raise InvalidRequestError("There is no median of no measurements.")
        sample = np.asarray(values, np.float64)
        draws = np.random.default_rng(0).integers(len(sample), size=(_RESAMPLES, len(sample)))
        medians = np.median(sample[draws], axis=1)
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(medians, [tail, 1 - tail])
        return cls(float(np.median(sample)), float(low), float(high))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"
