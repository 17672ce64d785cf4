"""The options that can be given by name, for type checkers and editors. A test makes this module
from the dataclasses in `options.py`, which declare them; nothing here is written by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from akunu_py.options import Grammar, Reasoning


class NamedOptions(TypedDict, total=False):
    """Those of `Options`."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    repetition_context_size: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    infill: bool
    max_tokens: int | None
    stop: Sequence[str]
    drafter: str
    num_draft_tokens: int | None
    exact: bool | None
    references: Sequence[str]
    logprobs: int | None
    drawn_logprobs: bool
    reports_progress: bool
    scores_prompt: bool
    grammar: Grammar | None
    reasoning: Reasoning | None
    priority: int
    project: str | None
    sample_calls: Sequence[str]


class NamedModelOptions(TypedDict, total=False):
    """Those of `ModelOptions`."""

    name: str
    weights: str
    no_wire: bool
    max_context: int | None
    adapter_path: str | None
    trust_remote_code: bool
    chat_template: str | None
    use_default_chat_template: bool
    chat_template_args: Mapping[str, Any] | None
    prefill_step_size: int | None
    prompt_cache_bytes: int | None
    prompt_cache_dir: Path | None
    prompt_cache_file: Path | None
    kv_bits: int | None
    kv_group_size: int
    quantized_kv_start: int
    max_kv_size: int | None
    pipeline: bool
    rank_timeout: float
    draft_model: str | None
    mtp: str | None
    no_mtp: bool
    projects: Sequence[str]
    remembers: bool
