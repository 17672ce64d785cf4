"""EngineCounters: what an engine has done since it was loaded, counted where it happens."""

from dataclasses import dataclass


@dataclass(slots=True)
class EngineCounters:
    """Running counts over all requests; any thread may read them.

    Attributes:
        requests: those that reached the model, cancelled ones included.
        prefill_chunks: forwards over a stretch of a prompt.
        prefill_tokens: prompt tokens that these computed.
        rounds: forwards that decoded, each with its draft.
    """

    requests: int = 0
    prefill_chunks: int = 0
    prefill_tokens: int = 0
    rounds: int = 0
