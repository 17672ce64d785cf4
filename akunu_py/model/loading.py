"""Loads a model, from its name and options.

A folder or a hub name comes in; every failure to load becomes a `ModelLoadError`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import utils

from akunu_py.cache.layers import LayerCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.errors import AkunuError, InvalidRequestError, ModelLoadError
from akunu_py.machine.backend import Backend, WeightLayout
from akunu_py.machine.device_memory import MORE_MEMORY, free_device_bytes
from akunu_py.model.cpu import with_fused_layers
from akunu_py.model.files import (
    CONTEXT_KEYS,
    WEIGHTS,
    fault_of_weights,
    find_adapter,
    find_model,
    model_name,
    weight_bytes,
)
from akunu_py.model.head import Head
from akunu_py.model.head_loading import load_head
from akunu_py.model.library import LocalModel
from akunu_py.model.target_model import TargetModel
from akunu_py.options import KVQuantization, ModelOptions
from akunu_py.text.tokenizer import ChatTemplate, Tokenizer

_OWN_TEMPLATE: Final = ChatTemplate()

_COUNTS_KEYS: Final = "afm7"
"""The mlx-lm model that takes a query's position from the number of keys, not all of which are kept
in a bounded layer; `tests/cache/test_bounded_caches.py` finds it."""

_LAYERS: Final = re.compile(r"n(um)?_(\w+_)?layers?")
_MAX_POSITION: Final = 2**31 - 1  # MLX counts positions in 32 bits


@dataclass(frozen=True)
class LoadedNetwork:
    """A network as mlx-lm made it, with its adapter, in the chosen layout.

    It has `parameters` weights of `nbytes`; its files are in `folder` and `adapter`.
    """

    network: nn.Module
    tokenizer: Tokenizer
    config: dict[str, Any]
    name: str
    folder: Path
    layout: WeightLayout
    adapter: Path | None
    parameters: int
    nbytes: int


def load_target(options: ModelOptions | str, backend: Backend) -> TargetModel:
    """Loads a model; options that only an engine needs are ignored. Raises ModelLoadError if it
    cannot be found, read or run, with the reason and what to do; InvalidRequestError for an unknown
    layout of weights, reserved template arguments, or keys and values that cannot be quantized or
    bounded.
    """
    options = ModelOptions(options) if isinstance(options, str) else options
    loaded = load_network(options, backend)
    mx.eval(loaded.network.parameters())
    network = with_fused_layers(loaded.network) if backend.is_cpu else loaded.network
    head, why_no_head = _load_head(network, loaded, options, backend)
    target = TargetModel(
        network,
        loaded.tokenizer,
        loaded.config,
        name=loaded.name,
        layout=loaded.layout,
        adapter=loaded.adapter,
        original=loaded.network,
        kv_quantization=fit_caches(network, options, backend),
        max_kv_size=options.max_kv_size,
        head=head,
    )
    target.why_no_head = why_no_head
    return target


def _load_head(
    network: nn.Module, loaded: LoadedNetwork, options: ModelOptions, backend: Backend
) -> tuple[Head | None, str | None]:
    """The head of a network, and the problem if it does not load and was not asked for."""

    def finish(step: nn.Module) -> nn.Module:
        if loaded.layout == "dense":
            use_dense_weights(step)
        mx.eval(step.parameters())
        return with_fused_layers(step) if backend.is_cpu else step

    if options.no_mtp:
        return None, None
    try:
        return load_head(network, loaded.config, loaded.folder, options.mtp, finish), None
    except ModelLoadError as error:
        if options.mtp is not None:
            raise
        return None, f"The model's drafting head is not used: {error}"


def load_network(options: ModelOptions, backend: Backend, *, ranks: int = 1) -> LoadedNetwork:
    """Loads a network, its adapter and its tokenizer. Dense weights are not evaluated yet; with
    several ranks, no weights are."""
    folder = find_model(options.name)
    name = model_name(options.name, folder)
    _check_memory(folder, weight_bytes(folder) // ranks)
    adapter = None if options.adapter_path is None else find_adapter(options.adapter_path)
    template = ChatTemplate(
        options.chat_template, options.use_default_chat_template, options.chat_template_args or {}
    )
    try:
        paths = () if fault_of_weights(folder) else folder.glob(WEIGHTS)
        tensors = sum(len(mx.load(str(path))) for path in paths)
        _check_sizes(folder, utils.load_config(folder), tensors)
        local = LocalModel(name, folder)
        if local.modules and (why_not := local.why_not):
            raise ModelLoadError(f"{name} cannot be used: {why_not}.")
        how = {"get_model_classes": _body_classes} if local.kind == "embedding" else {}
        network, config = utils.load_model(
            folder, lazy=ranks > 1, trust_remote_code=options.trust_remote_code, **how
        )
        tokenizer = _tokenizer_of(folder, config, template, options.trust_remote_code)
    except AkunuError:
        raise
    except (Exception, SystemExit) as error:  # mlx-lm and transformers raise nearly anything
        raise ModelLoadError(_what_failed(folder, error)) from error
    if adapter is not None:
        _add_adapter(network, adapter)
    parameters = int(utils.get_total_parameters(network))
    layout = backend.weight_layout(options.weights, parameters * mx.float32.size // ranks)
    if layout == "dense":
        _check_memory(folder, parameters * mx.float32.size // ranks)
        use_dense_weights(network)
        if adapter is not None:
            _merge_adapter(network)
    nbytes = sum(array.nbytes for _, array in tree_flatten(network.parameters()))
    return LoadedNetwork(
        network, tokenizer, config, name, folder, layout, adapter, parameters, nbytes
    )


def _body_classes(config: dict[str, Any]) -> tuple[Any, Any]:
    """mlx-lm's classes for an embedding model, without an output matrix: its files often have none,
    and name the parts of the body as if it were the whole model."""
    config["tie_word_embeddings"] = True
    whole, arguments = utils._get_classes(config)

    class Body(whole):  # type: ignore[misc, valid-type]
        def sanitize(self, weights: dict[str, mx.array]) -> Any:
            bare = {name.removeprefix("model."): weight for name, weight in weights.items()}
            kept = (name for name in bare if not name.startswith("lm_head."))
            return super().sanitize({f"model.{name}": bare[name] for name in kept})

    return Body, arguments


def _check_memory(folder: Path, needed: int) -> None:
    if needed > (free := free_device_bytes()):
        raise ModelLoadError(
            f"The weights in {folder} need {needed / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} GiB are free: {MORE_MEMORY}, or choose a model with fewer "
            "weights or bits."
        )


def _check_sizes(folder: Path, config: Mapping[str, Any], tensors: int) -> None:
    """Refuses more layers than tensors, which mlx-lm would build for hours, contexts that MLX
    cannot count, and numbers that make all others NaN. mlx-lm itself reports sizes that do not fit
    the weights."""
    for name, size in config.items():
        if isinstance(size, dict):
            _check_sizes(folder, size, tensors)
            continue
        is_number = isinstance(size, int | float)
        if (
            (is_number and not math.isfinite(size))
            or (is_number and _LAYERS.fullmatch(name) and 0 < tensors < size)
            or (is_number and name in CONTEXT_KEYS and not 0 <= size <= _MAX_POSITION)
            or (is_number and name == "rope_theta" and size <= 0)
            or (name == "text_config" and size is not None)
        ):
            raise ModelLoadError(
                f"The config.json in {folder} has {name} {size}, which is impossible; download the "
                "model again."
            )


def fit_caches(
    network: nn.Module, options: ModelOptions, backend: Backend
) -> KVQuantization | None:
    """How the caches of a network are quantized, if the options ask for it. Raises an
    InvalidRequestError if they cannot be quantized or bounded as the options say."""
    if options.max_kv_size is not None:
        check_bounded(network, options.max_kv_size)
    wanted = options.kv_quantization(backend.kv_form)
    return None if wanted is None else fit_kv_quantization(network, wanted)


def fit_kv_quantization(network: nn.Module, wanted: KVQuantization) -> KVQuantization:
    """The quantization in a form that a network can run with, found by building a forward pass.

    Where attention does not accept packed keys (multi-head latent attention, attention sinks), they
    are dequantized.
    """
    cache = make_kv_cache(network, 2, replace(wanted, start=0))
    if not cache.quantized_layers:
        raise InvalidRequestError(
            "This model has no layer that keeps all keys and values, so there is nothing to "
            "quantize; omit --kv-bits."
        )
    try:
        network(mx.array([[0, 0]]), cache=cache.layers)  # it is built but not computed
    except InvalidRequestError:
        raise
    except Exception as error:
        if wanted.form == "packed":
            return fit_kv_quantization(network, replace(wanted, form="dequantized"))
        raise InvalidRequestError(
            "This model reads its caches with its own code, so they cannot be quantized; "
            "omit --kv-bits."
        ) from error
    return wanted


def check_bounded(network: nn.Module, max_size: int) -> None:
    """Builds forward passes with more tokens than the layers of a cache keep. Raises an
    InvalidRequestError if no layer keeps all tokens, or one needs them all."""
    bounded = make_kv_cache(network, max_size + 3, max_size=max_size)
    unbounded = make_kv_cache(network, 1).kinds
    possible = bounded.kinds != unbounded and LayerCache.__name__ not in bounded.kinds
    possible = possible and getattr(network, "model_type", None) != _COUNTS_KEYS
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
    """The tokenizer of a model whose weights are not needed; see `find_model`."""
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


def _add_adapter(network: nn.Module, folder: Path) -> None:
    try:
        utils.load_adapters(network, str(folder))
    except Exception as error:  # mlx-lm raises nearly anything on a broken adapter
        raise ModelLoadError(
            f"The adapter in {folder} does not fit the model, or is damaged "
            f"({_in_one_line(error)[:200]})."
        ) from error
    network.eval()  # without dropout
    mx.eval(network.parameters())


def _merge_adapter(network: nn.Module) -> None:
    """Merges the adapter's layers, so that they cost nothing, but only into dense weights:
    quantizing the sum would change the answers."""
    layers = [
        (path, layer.fuse(dequantize=True))
        for path, layer in network.named_modules()
        if hasattr(layer, "fuse")  # only mlx-lm's adapters have it
    ]
    network.update_modules(tree_unflatten(layers))
    mx.eval(network.parameters())


def _what_failed(folder: Path, error: BaseException) -> str:
    reason = _in_one_line(error)
    if unknown := re.search(r"Model type (\S+) not supported", reason):
        return (
            f"{folder} has the architecture {unknown[1]!r}, which the installed mlx-lm does not "
            "know; a newer mlx-lm may."
        )
    is_unread = isinstance(error, RuntimeError) or "safetensors" in reason  # MLX reading the file
    if (is_unread or "parameters" in reason) and (fault := fault_of_weights(folder)):
        return fault
    if is_unread:
        return f"The weights in {folder} cannot be read; download them again ({reason})."
    if "trust_remote_code" in reason:
        return f"{folder} runs its own Python code; if you trust it, add --trust-remote-code."
    if "parameters" in reason:
        return f"The weights in {folder} do not fit its config.json ({reason[:200]})."
    return f"{folder} does not load ({reason[:300]})."


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def use_dense_weights(network: nn.Module) -> None:
    """Turns every weight of a loaded network into dense float32, in place and lazily."""
    utils.dequantize_model(network)
    network.set_dtype(mx.float32)
