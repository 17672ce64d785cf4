"""Job: one answer that a request wants of the engine, in no contract's words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from akunu_py.options import Options
from akunu_py.text.fim import FillRequest

if TYPE_CHECKING:
    from akunu_py.prompt import PromptInput


@dataclass(frozen=True)
class Job:
    """What to answer, and when to give up.

    Attributes:
        prompt: text, ids as the model shall see them, or a gap with what is around it.
        options: how to answer.
        suffix: what follows a gap after a prompt that is text; None goes on from the prompt.
        predict_s: seconds after the first token at which the answer ends, once it has a whole
            line; None lets it take as long as it takes.
        slot: what the client calls the place that it wants the answer for; None for no place.
            Not a cache: plugins send the same number for every editor and every file, and the
            cache that serves a prompt best is found by what it holds.
    """

    prompt: "PromptInput"
    options: Options
    suffix: str | None = None
    predict_s: float | None = None
    slot: int | None = None

    def prompt_text(self, decode: Callable[[Sequence[int]], str]) -> str:
        """The prompt as text; of a gap, what stands before it.

        Args:
            decode: turns ids into text.
        """
        if isinstance(self.prompt, str):
            return self.prompt
        if isinstance(self.prompt, FillRequest):
            return self.prompt.prefix
        return decode(self.prompt)

    def replaces(self, older: "Job") -> bool:
        """Whether it is what its client wants now instead of an older one: somebody went on typing
        the text before the same gap in the same slot, or took some of it back."""
        if self.slot is None or self.slot != older.slot:
            return False
        (before, gap), (old_before, old_gap) = self._parted(), older._parted()
        shared = min(len(before), len(old_before))
        return gap == old_gap and before[:shared] == old_before[:shared]

    def _parted(self) -> tuple[str | Sequence[int], object]:
        """What grows while somebody types, and what does not."""
        if isinstance(self.prompt, FillRequest):
            return self.prompt.prefix, replace(self.prompt, prefix="")
        return self.prompt, self.suffix

    def variant(self, choice: int) -> "Job":
        """The job of one of several choices: a seed repeats them all, but they differ."""
        sampling = self.options.sampling
        if sampling.seed is None or not choice:
            return self
        varied = replace(sampling, seed=sampling.seed + choice)
        return replace(self, options=replace(self.options, sampling=varied))
