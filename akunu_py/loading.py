"""`load`: from a model's name, and how to run it, to an engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from akunu_py.backend import find_backend
from akunu_py.calibration import find_cost_curve
from akunu_py.decoding.speculation import Calibrate
from akunu_py.engine import Engine
from akunu_py.model import load_target
from akunu_py.model_files import BUNDLED_MODEL
from akunu_py.options import DEFAULT_KV_GROUP_SIZE, DEFAULT_QUANTIZED_KV_START, KVQuantization
from akunu_py.text.chat_template import ChatTemplate


def load(
    model: str = BUNDLED_MODEL,
    *,
    weights: str = "auto",
    max_context: int | None = None,
    calibrate: Calibrate = find_cost_curve,
    draft_model: str | None = None,
    prefill_step_size: int | None = None,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    use_default_chat_template: bool = False,
    chat_template_args: Mapping[str, Any] | None = None,
    prompt_cache_bytes: int | None = None,
    prompt_cache_dir: Path | None = None,
    prompt_cache_file: Path | None = None,
    kv_bits: int | None = None,
    kv_group_size: int = DEFAULT_KV_GROUP_SIZE,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
) -> Engine:
    """Loads a model and makes an engine of it.

    Args:
        model: the bundled model's name, a folder, or `owner/name` on the hub.
        weights: `auto`, `quantized` or `dense`; `auto` is what is fastest on this machine.
        max_context: tokens that a prompt and its answer may have together; None leaves that to
            the model.
        calibrate: measures what forwards cost; see `Engine`.
        draft_model: a second, smaller model, for requests whose drafter is `model` or `auto`.
        prefill_step_size: prompt tokens per forward; see `Engine`.
        adapter_path: the folder of an adapter that mlx-lm trained on this model (LoRA, DoRA).
        trust_remote_code: whether the models may run Python code that came with them.
        chat_template: a Jinja template instead of the model's own.
        use_default_chat_template: whether a model without a template gets ChatML.
        chat_template_args: variables for the template, such as `{"enable_thinking": False}`.
        prompt_cache_bytes: bytes that caches may take together, and the files of a folder; see
            `Engine` and `PromptStore`.
        prompt_cache_dir: a folder that keeps prompts on disk.
        prompt_cache_file: a file that keeps one prompt, instead.
        kv_bits: quantizes the keys and values of layers with full attention to 4 or 8 bits; None
            leaves them as they are. A draft model's stay as they are.
        kv_group_size: how many numbers share a scale: 32, 64 or 128.
        quantized_kv_start: tokens of context from which on they are quantized. Of a longer context,
            a later prompt can reuse no fewer tokens than these.

    Raises:
        AkunuError: if a model, the machine or the arguments do not allow it.
    """
    backend = find_backend()
    quantization = None
    if kv_bits is not None:
        form = backend.kv_form
        quantization = KVQuantization(kv_bits, kv_group_size, quantized_kv_start, form)
    target = load_target(
        model,
        backend,
        weights,
        adapter_path=adapter_path,
        trust_remote_code=trust_remote_code,
        chat_template=ChatTemplate(
            chat_template, use_default_chat_template, chat_template_args or {}
        ),
        kv_quantization=quantization,
    )
    drafting = None
    if draft_model is not None:
        drafting = load_target(draft_model, backend, weights, trust_remote_code=trust_remote_code)
    return Engine(
        target,
        backend,
        max_context=max_context,
        calibrate=calibrate,
        draft_model=drafting,
        prefill_step_size=prefill_step_size,
        prompt_cache_bytes=prompt_cache_bytes,
        prompt_store=target.prompt_store(prompt_cache_dir, prompt_cache_file, prompt_cache_bytes),
    )
