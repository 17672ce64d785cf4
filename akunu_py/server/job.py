"""Job: one answer that a request wants of the engine, in no contract's words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from akunu_py.options import Options


@dataclass(frozen=True)
class Job:
    """What to answer, and when to give up.

    Attributes:
        prompt: text, or ids as the model shall see them.
        options: how to answer.
        suffix: what follows the gap to fill; None goes on from the prompt.
        predict_s: seconds after the first token at which the answer ends, once it has a whole
            line; None lets it take as long as it takes.
    """

    prompt: str | Sequence[int]
    options: Options
    suffix: str | None = None
    predict_s: float | None = None

    def variant(self, choice: int) -> "Job":
        """The job of one of several choices: a seed repeats them all, but they differ."""
        sampling = self.options.sampling
        if sampling.seed is None or not choice:
            return self
        varied = replace(sampling, seed=sampling.seed + choice)
        return replace(self, options=replace(self.options, sampling=varied))
