"""Job: one completion that a client wants, in the engine's terms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.sequence import Kind
from akunu_py.text.fim import FillRequest

if TYPE_CHECKING:
    from akunu_py.prompt import PromptInput


@dataclass(frozen=True)
class Job:
    """What to complete, how, and when to stop.

    Attributes:
        prompt: text, token ids, or a gap with its surroundings.
        suffix: text after the gap, if `prompt` is the text before it; None for no gap.
        predict_s: seconds from the first token on after which the completion ends, as soon as it
            has a whole line, so that a slow machine still completes something; None for no limit.
        is_chat: whether it continues a conversation.
        slot: the client's number for what it works on; None for none. It is not a cache: plugins
            send the same number for every file, and the engine finds the best cache by content.
    """

    prompt: "PromptInput"
    options: Options
    suffix: str | None = None
    predict_s: float | None = None
    slot: int | None = None
    is_chat: bool = False

    @property
    def asked(self) -> "PromptInput":
        """The prompt for the engine.

        Raises:
            InvalidRequestError: if there is a gap, but the text before it is not text.
        """
        if self.suffix is None:
            return self.prompt
        if not isinstance(self.prompt, str):
            raise InvalidRequestError("A suffix needs a prompt that is text.")
        return FillRequest(self.prompt, self.suffix)

    @property
    def kind(self) -> Kind:
        """What it is to the scheduler."""
        if self.is_chat:
            return Kind.CHAT
        fills = self.suffix is not None or isinstance(self.prompt, FillRequest)
        return Kind.FILL_IN if fills else Kind.COMPLETION

    def prompt_text(self, decode: Callable[[Sequence[int]], str]) -> str:
        """The prompt as text; of a gap, the text before it."""
        if isinstance(self.prompt, str):
            return self.prompt
        if isinstance(self.prompt, FillRequest):
            return self.prompt.prefix
        return decode(self.prompt)

    def replaces(self, older: "Job") -> bool:
        """Whether a client sends this job in place of an older one: it names the same slot, and
        the user has typed or deleted text before the same gap."""
        if self.slot is None or self.slot != older.slot:
            return False
        (before, gap), (old_before, old_gap) = self._split(), older._split()
        shared = min(len(before), len(old_before))
        return gap == old_gap and before[:shared] == old_before[:shared]

    def _split(self) -> tuple[str | Sequence[int], object]:
        """The text that grows while the user types, and the rest."""
        if isinstance(self.prompt, FillRequest):
            return self.prompt.prefix, replace(self.prompt, prefix="")
        return self.prompt, self.suffix

    def variant(self, choice: int) -> "Job":
        """The job for one of several choices. With a seed, choices are repeatable but differ, also
        from those of other seeds below 2^32."""
        sampling = self.options.sampling
        if sampling.seed is None or not choice:
            return self
        varied = replace(sampling, seed=sampling.seed + (choice << 32))
        return replace(self, options=replace(self.options, sampling=varied))
