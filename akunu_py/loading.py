"""From the options of a model to an engine, on one machine or on several."""

from importlib.metadata import version
from pathlib import Path
from typing import Unpack

from akunu_py.cache.prompt_store import DEFAULT_BYTES, PromptStore
from akunu_py.calibration.measure import Calibrate, find_cost_curve
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import Backend, find_backend
from akunu_py.machine.device_memory import bound_freed_memory, wire_weights
from akunu_py.memory.projects import Memory, open_memory
from akunu_py.model.files import find_model, tokenizer_fingerprint
from akunu_py.model.loading import fit_caches, load_network, load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.named_options import NamedModelOptions
from akunu_py.option_field import with_named
from akunu_py.options import BUNDLED_MODEL, ModelOptions
from akunu_py.package import __version__
from akunu_py.ranks.group import Ranks, find_ranks
from akunu_py.ranks.split_model import RankedModel, follow, sampled_weights, take_share


def load(
    model: ModelOptions | str | Path = BUNDLED_MODEL,
    *,
    calibrate: Calibrate = find_cost_curve,
    **named: Unpack[NamedModelOptions],
) -> Engine:
    """Loads a model (its options, or just its name or folder; by default the bundled one) and makes
    an engine of it. `named` are single options of the model, such as `kv_bits=8`; `calibrate`: see
    Engine.

    >>> engine = akunu_py.load()
    >>> engine.model.name
    'ember'

    Raises AkunuError if the model, the machine or the options do not allow it. All processes of
    `mlx.launch` but the first compute for that one and end with SystemExit.
    """
    if not isinstance(model, ModelOptions | str | Path):
        found = type(model).__name__
        raise InvalidRequestError(f"A model is a name, a folder or `ModelOptions`, not {found}.")
    options = model if isinstance(model, ModelOptions) else ModelOptions(str(model))
    options = with_named(options, named)
    backend = find_backend()
    ranks = find_ranks(options.rank_timeout)
    if ranks is not None:
        target = _load_share(options, backend, ranks)
    elif options.pipeline:
        raise InvalidRequestError(
            "--pipeline splits a model among several processes: start them with `mlx.launch -n 2`."
        )
    else:
        target = load_target(options, backend)
    bound_freed_memory()
    if not options.no_wire:
        head_bytes = 0 if target.head is None else target.head.parameter_bytes
        wire_weights(target, target.parameter_bytes + head_bytes)
    if ranks is not None and ranks.rank > 0:
        raise SystemExit(follow(target, ranks))
    return Engine(
        target,
        backend,
        max_context=options.max_context,
        calibrate=calibrate,
        draft_model=_load_draft_model(options, backend),
        prefill_step_size=options.prefill_step_size,
        prompt_cache_bytes=options.prompt_cache_bytes,
        prompt_store=_open_store(options, target),
        memory=_open_memory(options, target),
    )


def _load_share(options: ModelOptions, backend: Backend, ranks: Ranks) -> TargetModel:
    """This rank's share of a model; on rank 0, the model whose forward passes all ranks compute."""
    for flag, value in (
        ("--adapter-path; fuse the adapter with `mlx_lm.fuse` instead", options.adapter_path),
        ("--mtp", options.mtp),
        ("--prompt-cache-dir", options.prompt_cache_dir),
        ("--prompt-cache-file", options.prompt_cache_file),
        ("--kv-bits with --pipeline", options.kv_bits if options.pipeline else None),
    ):
        if value is not None:
            raise InvalidRequestError(f"Several ranks cannot do {flag}.")
    loaded = load_network(options, backend, ranks=ranks.size)
    network, config = loaded.network, loaded.config
    facts = (
        config, loaded.layout, options.pipeline, options.kv_quantization(backend.kv_form),
        options.max_kv_size, __version__, version("mlx"), sampled_weights(loaded.folder),
    )  # fmt: skip
    ranks.check_same(repr(facts))
    take_share(network, config, ranks, pipeline=options.pipeline)
    quantization = fit_caches(network, options, backend)
    if ranks.rank == 0:
        return RankedModel(
            ranks,
            loaded,
            pipeline=options.pipeline,
            kv_quantization=quantization,
            max_kv_size=options.max_kv_size,
        )
    return TargetModel(
        network,
        loaded.tokenizer,
        config,
        name=loaded.name,
        layout=loaded.layout,
        kv_quantization=quantization,
        max_kv_size=options.max_kv_size,
    )


def _load_draft_model(options: ModelOptions, backend: Backend) -> TargetModel | None:
    if options.draft_model is None:
        return None
    draft = ModelOptions(
        options.draft_model,
        weights=options.weights,
        no_mtp=True,
        trust_remote_code=options.trust_remote_code,
    )
    return load_target(draft, backend)


def _open_memory(options: ModelOptions, target: TargetModel) -> Memory:
    remembers = options.remembers
    if not options.projects:
        return Memory(remembers=remembers)
    fingerprint = tokenizer_fingerprint(find_model(options.name))
    return open_memory(options.projects, fingerprint, target.vocabulary_size, remembers=remembers)


def _open_store(options: ModelOptions, target: TargetModel) -> PromptStore | None:
    place, limit = options.prompt_cache_file or options.prompt_cache_dir, options.prompt_cache_bytes
    if place is None:
        return None
    return PromptStore(
        place,
        target.fingerprint,
        target.sample_cache(),
        limit=DEFAULT_BYTES if limit is None else limit,
        single=place is options.prompt_cache_file,
    )
