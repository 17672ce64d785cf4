"""From a model's name, and how to run it, to the loaded model or an engine of it.

A folder or a hub name comes in; every failure to load becomes a `ModelLoadError`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm import utils

from akunu_py.cache.layers import LayerCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.cache.prompt_store import DEFAULT_BYTES, PromptStore
from akunu_py.calibration.measure import find_cost_curve
from akunu_py.decoding.speculation import Calibrate
from akunu_py.engine import Engine
from akunu_py.errors import AkunuError, InvalidRequestError, ModelLoadError
from akunu_py.machine.backend import Backend, find_backend
from akunu_py.memory.projects import Memory, open_memory
from akunu_py.model.adapter import add_adapter, merge_adapter
from akunu_py.model.attention import few_rows_of
from akunu_py.model.cpu.network import with_fused_layers
from akunu_py.model.files import (
    BUNDLED_MODEL,
    find_adapter,
    find_model,
    model_name,
    tokenizer_fingerprint,
)
from akunu_py.model.target_model import TargetModel
from akunu_py.options import (
    DEFAULT_KV_GROUP_SIZE,
    DEFAULT_QUANTIZED_KV_START,
    DEFAULT_RANK_TIMEOUT_S,
    KVQuantization,
    check_max_kv_size,
)
from akunu_py.package import __version__
from akunu_py.ranks.group import Ranks
from akunu_py.ranks.joining import find_ranks
from akunu_py.ranks.mirror import RankedModel, follow
from akunu_py.ranks.sharding import sampled_weights, take_share
from akunu_py.text.chat_template import ChatTemplate
from akunu_py.text.tokenizer import Tokenizer

_FLOAT32_BYTES: Final = 4
_OWN_TEMPLATE: Final = ChatTemplate()


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
    max_kv_size: int | None = None,
    projects: Sequence[str] = (),
    remembers: bool = False,
    pipeline: bool = False,
    rank_timeout: float = DEFAULT_RANK_TIMEOUT_S,
) -> Engine:
    """Loads a model and makes an engine of it.

    Args:
        model: the bundled model's name, a folder, or `owner/name` on the hub.
        weights: `auto`, `quantized` or `dense`; `auto` is what is fastest on this machine.
        max_context: tokens that a prompt and its answer may have together; None leaves that to
            the model.
        calibrate: measures what forwards cost; see `Engine`.
        draft_model: a second, smaller model, for requests whose drafter is `model`.
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
        max_kv_size: tokens that layers with full attention keep: the first 4, and the last ones;
            the model forgets those between. None keeps all. A draft model keeps all.
        projects: indexed folders whose files the drafter `auto` also drafts from; `auto` is the git
            root of the current folder, if that was indexed.
        remembers: whether it also drafts from the texts of earlier requests.
        pipeline: whether the processes that `mlx.launch` started split the list of layers, instead
            of each layer.
        rank_timeout: seconds after which one of them that does not answer counts as lost.

    Raises:
        AkunuError: if a model, the machine or the arguments do not allow it.
        SystemExit: in all processes of `mlx.launch` but the first, at the end: they only compute
            what that one says.
    """
    check_max_kv_size(max_kv_size, kv_bits)
    if prompt_cache_dir is not None and prompt_cache_file is not None:
        raise InvalidRequestError(
            "Prompts are kept in a folder or in a file: set prompt_cache_dir or "
            "prompt_cache_file, not both."
        )
    backend = find_backend()
    ranks = find_ranks(rank_timeout)
    if pipeline and ranks is None:
        raise InvalidRequestError(
            "--pipeline splits a model among several processes: start them with `mlx.launch -n 2`."
        )
    if ranks is not None:
        for flag, value in (
            ("--adapter-path; fuse the adapter with `mlx_lm.fuse` instead", adapter_path),
            ("--prompt-cache-dir", prompt_cache_dir),
            ("--prompt-cache-file", prompt_cache_file),
            ("--kv-bits with --pipeline", kv_bits if pipeline else None),
        ):
            if value is not None:
                raise InvalidRequestError(f"Several ranks cannot do {flag}.")
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
        max_kv_size=max_kv_size,
        ranks=ranks,
        pipeline=pipeline,
    )
    if ranks is not None and ranks.rank > 0:
        raise SystemExit(follow(target, ranks))
    drafting = None
    if draft_model is not None:
        drafting = load_target(draft_model, backend, weights, trust_remote_code=trust_remote_code)
    memory = Memory(remembers=remembers)
    if projects:
        fingerprint = tokenizer_fingerprint(find_model(model))
        memory = open_memory(projects, fingerprint, target.vocabulary_size, remembers=remembers)
    place, store = prompt_cache_file or prompt_cache_dir, None
    if place is not None:
        store = PromptStore(
            place,
            target.fingerprint,
            target.make_cache(1),
            limit=DEFAULT_BYTES if prompt_cache_bytes is None else prompt_cache_bytes,
            single=place is prompt_cache_file,
        )
    return Engine(
        target,
        backend,
        max_context=max_context,
        calibrate=calibrate,
        draft_model=drafting,
        prefill_step_size=prefill_step_size,
        prompt_cache_bytes=prompt_cache_bytes,
        prompt_store=store,
        memory=memory,
    )


def load_target(
    name: str,
    backend: Backend,
    weights: str = "auto",
    *,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    chat_template: ChatTemplate = _OWN_TEMPLATE,
    kv_quantization: KVQuantization | None = None,
    max_kv_size: int | None = None,
    ranks: Ranks | None = None,
    pipeline: bool = False,
) -> TargetModel:
    """Loads a model from a folder or a hub name.

    Args:
        name: a folder, or `owner/name` on the hub.
        backend: the machine to load it for.
        weights: `auto`, `quantized` or `dense`.
        adapter_path: the folder of an adapter that mlx-lm trained on this model.
        trust_remote_code: whether the model and its tokenizer may run Python code of their own.
        chat_template: how its conversations become text.
        kv_quantization: how to quantize its keys and values; None leaves them as they are.
        max_kv_size: the tokens that layers with full attention keep; None keeps all.
        ranks: the processes that split it; None loads it whole.
        pipeline: whether they split the list of layers, instead of each layer.

    Raises:
        ModelLoadError: if it cannot be found, read or run; the text says which and what to do.
        InvalidRequestError: if there is no layout `weights`, or the template's arguments have a
            reserved name, or its keys and values cannot be quantized or bounded.
    """
    folder = find_model(name)
    adapter = None if adapter_path is None else find_adapter(adapter_path)
    try:
        network, config = utils.load_model(
            folder, lazy=ranks is not None, trust_remote_code=trust_remote_code
        )
        tokenizer = _tokenizer_of(folder, config, chat_template, trust_remote_code)
    except AkunuError:
        raise
    except (Exception, SystemExit) as error:  # mlx-lm and transformers raise nearly anything
        raise ModelLoadError(_what_failed(folder, error)) from error
    if adapter is not None:
        add_adapter(network, adapter)
    parameters = int(utils.get_total_parameters(network))
    layout = backend.weight_layout(weights, _dense_bytes(network) // (ranks.size if ranks else 1))
    if layout == "dense":
        use_dense_weights(network)
        if adapter is not None:
            merge_adapter(network)
    whole_bytes = sum(array.nbytes for _, array in tree_flatten(network.parameters()))
    if ranks is not None:
        facts = config, layout, pipeline, kv_quantization, max_kv_size, __version__, version("mlx")
        ranks.check_same(repr((facts, sampled_weights(folder))))
        take_share(network, config, ranks, pipeline=pipeline)
    mx.eval(network.parameters())
    fastest = network if ranks is not None else fastest_network(network, backend)
    if kv_quantization is not None:
        kv_quantization = fit_kv_quantization(fastest, kv_quantization)
    if max_kv_size is not None:
        check_bounded(fastest, max_kv_size)
    if ranks is not None and ranks.rank == 0:
        return RankedModel(
            ranks, network, tokenizer, config,
            pipeline=pipeline, name=model_name(name, folder), layout=layout,
            kv_quantization=kv_quantization, max_kv_size=max_kv_size, parameters=parameters,
            whole_bytes=whole_bytes,
        )  # fmt: skip
    return TargetModel(
        fastest,
        tokenizer,
        config,
        name=model_name(name, folder),
        layout=layout,
        adapter=adapter,
        original=network,
        kv_quantization=kv_quantization,
        max_kv_size=max_kv_size,
        traces=backend.traces and ranks is None,
        few_rows=few_rows_of(backend) if ranks is None else None,
    )


def fit_kv_quantization(network: nn.Module, wanted: KVQuantization) -> KVQuantization:
    """The quantization in a form that a network can run with, found by building a forward.

    Where attention does not take packed keys (multi-head latent attention, attention sinks), they
    are dequantized for it.

    Raises:
        InvalidRequestError: if the network has nothing to quantize, or its heads do not divide into
            groups, or it uses its caches' buffers itself.
    """
    cache = make_kv_cache(network, 2, replace(wanted, start=0))
    if not cache.quantized_layers:
        raise InvalidRequestError(
            "This model has no layer that keeps all keys and values, so there is nothing to "
            "quantize; omit --kv-bits."
        )
    try:
        network(mx.array([[0, 0]]), cache=cache.layers)  # it is built, and not computed
    except InvalidRequestError:
        raise
    except Exception as error:
        if wanted.form == "packed":
            return fit_kv_quantization(network, replace(wanted, form="dequantized"))
        raise InvalidRequestError(
            "This model computes with its caches itself, so they cannot be quantized; "
            "omit --kv-bits."
        ) from error
    return wanted


def check_bounded(network: nn.Module, max_size: int) -> None:
    """Builds, and does not compute, forwards with more tokens than the layers of a cache keep.

    Raises:
        InvalidRequestError: if no layer keeps all tokens, or one needs them all.
    """
    bounded = make_kv_cache(network, max_size + 3, max_size=max_size)
    unbounded = make_kv_cache(network, 1).kinds
    possible = bounded.kinds != unbounded and LayerCache.__name__ not in bounded.kinds
    try:
        for tokens in (max_size, 2, 1) if possible else ():
            network(mx.zeros((1, tokens), mx.int32), cache=bounded.layers)
    except Exception:  # whatever a network raises about shapes
        possible = False
    if not possible:
        raise InvalidRequestError(
            "The keys and values of this model cannot be bounded; omit --max-kv-size."
        )


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model whose weights are not needed.

    Args:
        name: the bundled model's name, a folder, or `owner/name` on the hub.

    Raises:
        ModelLoadError: if there is no such model, or its tokenizer cannot be read.
    """
    folder = find_model(name, weights=False)
    try:
        return _tokenizer_of(folder, utils.load_config(folder))
    except Exception as error:  # transformers raises nearly anything on a broken tokenizer
        raise ModelLoadError(f"The tokenizer in {folder} does not load: {error}") from error


def _tokenizer_of(
    folder: Path,
    config: dict[str, Any],
    chat_template: ChatTemplate = _OWN_TEMPLATE,
    trust_remote_code: bool = False,
) -> Tokenizer:
    extra = {"trust_remote_code": trust_remote_code} | chat_template.tokenizer_config
    wrapped = utils.load_tokenizer(folder, extra, eos_token_ids=config.get("eos_token_id"))
    chat_template.install(wrapped)
    return Tokenizer(wrapped, chat_template.args)


def _dense_bytes(network: nn.Module) -> int:
    """Bytes of the weights as float32."""
    total = 0
    for _, module in network.named_modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            total += module.weight.size * 32 // module.bits
        else:
            own = (module[key] for key in module if isinstance(module[key], mx.array))
            total += sum(array.size for array in own)
    return total * _FLOAT32_BYTES


def _what_failed(folder: Path, error: BaseException) -> str:
    """One sentence that says why a folder did not load."""
    reason = re.sub(r"\s+", " ", str(error)).strip().rstrip(".") or type(error).__name__
    if unknown := re.search(r"Model type (\S+) not supported", reason):
        return (
            f"{folder} has the architecture {unknown[1]!r}, which the installed mlx-lm does not "
            "know; a newer mlx-lm may."
        )
    if isinstance(error, FileNotFoundError) and "safetensors" in reason:
        return f"{folder} has no model*.safetensors: its weights are missing."
    if isinstance(error, RuntimeError) or "safetensors" in reason:  # MLX reading the file
        return f"The weights in {folder} cannot be read, so download them again ({reason})."
    if "trust_remote_code" in reason:
        return f"{folder} runs Python code of its own; if you trust it, use --trust-remote-code."
    if "parameters" in reason:
        return f"The weights in {folder} do not fit its config.json ({reason[:200]})."
    return f"{folder} does not load ({reason[:300]})."


def fastest_network(network: nn.Module, backend: Backend) -> nn.Module:
    """A loaded network in the form that is fastest on this machine; its weights are shared."""
    return with_fused_layers(network) if backend.device == "cpu" else network


def use_dense_weights(network: nn.Module) -> None:
    """Turns every weight of a loaded network into dense float32, in place and lazily."""
    utils.dequantize_model(network)
    network.set_dtype(mx.float32)
