"""The models on this machine, as described by their files, without MLX; and the hub's, which `plan`
and `Download` fetch through `huggingface_hub`, with its cache, token, progress bars and resuming.

A model is bundled, in the hub's cache, or in a folder that the user named. `why_not` checks that
the installed mlx-lm has its architecture and that its weights are complete. Only `pull` uses the
network.
"""

import ast
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from akunu_py.errors import AkunuError, InvalidRequestError, ModelLoadError
from akunu_py.model.files import (
    CONTEXT_KEYS,
    FALLBACK_CONTEXT,
    HEAD_FILES,
    WEIGHTS,
    bundled_model,
    cached_model,
    fault_of_weights,
    find_model,
    from_hub,
    hub_cache,
    hub_errors,
    is_hub_name,
    json_object,
    model_files,
    model_name,
    read_json,
    weight_bytes,
)
from akunu_py.options import BUNDLED_MODEL
from akunu_py.package import open_file

_HEAD_KEYS: Final = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_UNREADABLE: Final = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error,
)  # fmt: skip
_CACHE_NUMBER_BYTES: Final = 2
_MOST_HEADER_BYTES: Final = 4 << 20
_METADATA: Final = "__metadata__"
_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NAMES: Final = {"LogitScore": r"(?i)qwen3-reranker", "Normalize": r"(?i)\bembed(dings?)?\b"}
"""The last module of models with such names."""
_POOLINGS: Final = {"pooling_mode_lasttoken": "lasttoken", "pooling_mode_mean_tokens": "mean",
                    "pooling_mode_cls_token": "cls"}  # fmt: skip
"""The poolings by their names in older files."""
_PACKED: Final = "U32"
"""The safetensors type of quantized weights; one number holds several weights."""

USUAL_TOKENS: Final = 2048
"""The tokens of cache that should fit into memory besides a model's weights."""

Place = Literal["bundled", "hub", "folder"]


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine: its `name` is `ember`, its hub name, or that of its folder."""

    name: str
    folder: Path
    place: Place = "folder"

    @classmethod
    def named(cls, name: str) -> "LocalModel":
        """The model of `--model NAME`, fetched from the hub if it is not here; else a
        ModelLoadError.
        """
        folder = find_model(name)
        if name == BUNDLED_MODEL:
            return cls(name, folder, "bundled")
        found = model_name(name, folder)
        return cls(found, folder, "hub" if "/" in found else "folder")

    @property
    def asked(self) -> str:
        """Its `ModelOptions.name`."""
        return str(self.folder) if self.place == "folder" else self.name

    @cached_property
    def config(self) -> dict[str, Any]:
        return json_object(self.folder / "config.json")

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """The sampling that the model's authors recommend, in `generation_config.json`."""
        found = json_object(self.folder / "generation_config.json")
        if found.get("do_sample") is False:
            return {"temperature": 0.0}
        return found

    @cached_property
    def nbytes(self) -> int:
        """The bytes of its weights and its head on disk; about the same in memory."""
        heads = (self.folder / name for name in HEAD_FILES)
        return weight_bytes(self.folder) + sum(it.stat().st_size for it in heads if it.is_file())

    @cached_property
    def parameters(self) -> int:
        """The number of its weights, from the headers of its files; 0 if they cannot be read."""
        with suppress(*_UNREADABLE):
            return sum(_weights_in(path, self.bits) for path in self.folder.glob(WEIGHTS))
        return 0

    def cache_bytes(self, tokens: int) -> int:
        """About the bytes of keys and values of this many tokens, if all layers keep all of
        them."""
        layers = self._number("num_hidden_layers", "n_layer", "num_layers")
        heads = self._number("num_attention_heads", "n_head")
        size = self._number("head_dim") or self._number("hidden_size", "n_embd") // max(heads, 1)
        shared = self._number("num_key_value_heads") or heads
        return 2 * layers * shared * size * tokens * _CACHE_NUMBER_BYTES

    @property
    def architecture(self) -> str:
        return str(self.config.get("model_type", "unknown"))

    @property
    def context(self) -> int:
        return self._number(*CONTEXT_KEYS) or FALLBACK_CONTEXT

    @property
    def vocabulary(self) -> int:
        return self._number("vocab_size")

    @property
    def bits(self) -> int | None:
        """The bits of a quantized weight; None if the weights are not quantized."""
        found = self.config.get("quantization") or self.config.get("quantization_config")
        bits = found.get("bits") if isinstance(found, dict) else None
        return bits if isinstance(bits, int) else None

    @property
    def precision(self) -> str:
        """`4bit`, or the type of the weights."""
        if self.bits:
            return f"{self.bits}bit"
        with suppress(*_UNREADABLE, StopIteration):
            header = _header(next(self.folder.glob(WEIGHTS)))
            dtypes = (tensor["dtype"] for name, tensor in header.items() if name != _METADATA)
            return _DTYPES[next(dtypes)]
        return "unknown"

    @cached_property
    def modules(self) -> dict[str, dict[str, Any]]:
        """The modules of sentence-transformers: the settings of each, by its name. mlx-lm's
        conversions lack the file, and are recognized by their own names."""
        with suppress(*_UNREADABLE):
            found = read_json(self.folder / "modules.json")
            paths = {one["type"].rpartition(".")[2]: self.folder / one["path"] for one in found}
            return {name: json_object(path / "config.json") for name, path in paths.items()}
        end = self.name.rpartition("/")[2]
        return next(({part: {}} for part, name in _NAMES.items() if re.search(name, end)), {})

    @property
    def pooling(self) -> str:
        """The tokens whose states become its embedding; by default, the last token."""
        settings = self.modules.get("Pooling", {"pooling_mode": "lasttoken"})
        flags = (name for name, value in settings.items() if value is True and "_mode_" in name)
        modes = " and ".join(_POOLINGS.get(name, name) for name in flags)
        return str(settings.get("pooling_mode", modes))

    @property
    def ability(self) -> str:
        """What it is for, in Ollama's words, and `reranking`, for which Ollama has none."""
        return self.kind if self.modules else "completion"

    @property
    def kind(self) -> Literal["chat", "text", "embedding", "reranking"]:
        if self.modules:
            return "reranking" if "LogitScore" in self.modules else "embedding"
        has_template = (self.folder / "chat_template.jinja").exists()
        settings = json_object(self.folder / "tokenizer_config.json")
        return "chat" if has_template or settings.get("chat_template") else "text"

    @property
    def has_head(self) -> bool:
        """Whether it has a drafting head."""
        has_file = any((self.folder / name).is_file() for name in HEAD_FILES)
        return has_file or self._number(*_HEAD_KEYS) > 0

    @property
    def why_not(self) -> str | None:
        """Why it cannot run, as far as its files show; None if it can."""
        if not self.config:
            return "it has no readable config.json"
        if self.architecture not in _architectures():
            return f"mlx-lm has no architecture {self.architecture}"
        parts, says = self.modules, self.config.get
        if parts and (says("is_causal") is False or says("use_bidirectional_attention")):
            return "its tokens attend to later ones, unlike those of mlx-lm's models"
        known = {"Transformer", "Pooling", "Normalize", *_POOLINGS.values()}
        known |= {"LogitScore"} if re.search(_NAMES["LogitScore"], self.name) else set()
        if unknown := {*parts, self.pooling} - known:
            return f"it needs {' and '.join(sorted(unknown))}, which is not computed here"
        return fault_of_weights(self.folder)

    def _number(self, *names: str) -> int:
        for settings in (self.config.get("text_config") or {}, self.config):
            for name in names:
                if isinstance(settings, dict) and isinstance(settings.get(name), int):
                    return int(settings[name])
        return 0


def check_folders(folders: Iterable[Path]) -> None:
    """Raises an InvalidRequestError if one of the folders of `--models-dir` does not exist."""
    for folder in folders:
        if not folder.is_dir():
            raise InvalidRequestError(f"There is no folder {folder}; check --models-dir.")


def local_models(folders: Iterable[Path] = ()) -> Iterator[LocalModel]:
    """All models on this machine that can run: the bundled one, those in the hub's cache, and those
    in these folders, each of which is a model or contains some."""
    for model in all_local_models(folders):
        if model.why_not is None:
            yield model


def all_local_models(folders: Iterable[Path] = ()) -> Iterator[LocalModel]:
    """The same, including those that cannot run."""
    with suppress(ModelLoadError):
        yield LocalModel(BUNDLED_MODEL, bundled_model(), "bundled")
    for repository in sorted(hub_cache().glob("models--*--*")):
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        if (folder := cached_model(name)) is not None:
            yield LocalModel(name, folder, "hub")
    for folder in folders:
        for config in (folder / "config.json", *sorted(folder.glob("*/config.json"))):
            if config.exists():
                yield LocalModel(config.parent.resolve().name, config.parent)
        for config in sorted(folder.glob("*/*/config.json")):  # as LM Studio arranges them
            owner, model = config.parents[1], config.parent
            if not any((each / "config.json").exists() for each in (folder, owner)):
                yield LocalModel(f"{owner.name}/{model.name}", model)


def matches(models: Iterable[LocalModel], asked: str) -> list[LocalModel]:
    """The models that a name may mean: those with this name, or else those whose name ends in
    it."""
    wanted, found = asked.casefold(), list(models)
    called = [model for model in found if model.name.casefold() == wanted]
    return called[:1] or [
        model for model in found if model.name.rpartition("/")[2].casefold() == wanted
    ]


def short_count(parameters: int) -> str:
    """A number of weights, such as 7.6B."""
    if parameters >= 1_000_000_000:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.1f}M" if parameters >= 1_000_000 else f"{parameters / 1e3:.0f}K"


def in_gigabytes(nbytes: float) -> str:
    """A number of bytes, such as 4.3 GB."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


@cache
def _architectures() -> frozenset[str]:
    """Those of the installed mlx-lm, found without importing it, which would take a second."""
    spec = find_spec("mlx_lm")
    places = (spec and spec.submodule_search_locations) or ()
    names: set[str] = set()
    for place in map(Path, places):
        names |= {path.stem for path in (place / "models").glob("*.py")}
        for node in ast.parse((place / "utils.py").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and "MODEL_REMAPPING" in ast.unparse(node.targets[0]):
                names |= ast.literal_eval(node.value).keys()
    return frozenset(names)


def _header(path: Path) -> dict[str, Any]:
    with open_file(Path(os.path.realpath(path)), own=False) as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found: dict[str, Any] = json.loads(file.read(min(length, _MOST_HEADER_BYTES)))
    return found


def _weights_in(path: Path, bits: int | None) -> int:
    total = 0
    for name, tensor in _header(path).items():
        if name == _METADATA or (bits and name.endswith((".scales", ".biases"))):
            continue
        size = 1
        for axis in tensor["shape"]:
            size *= axis
        total += size * 32 // bits if bits and tensor["dtype"] == _PACKED else size
    return total


@dataclass(frozen=True)
class Download:
    """The files of a model on the hub: their sizes, by their names in the cache."""

    name: str
    sizes: Mapping[str, int]
    weight_bytes: int

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    @property
    def completed(self) -> int:
        """Bytes that are here, including incomplete files; for any thread."""
        blobs = hub_cache() / f"models--{self.name.replace('/', '--')}" / "blobs"
        found = 0
        for blob, size in self.sizes.items():
            parts = [path.stat().st_size for path in blobs.glob(f"{blob}*")]
            found += min(size, max(parts, default=0))
        return found

    def run(self) -> LocalModel:
        """Fetches what is missing; see `find_model` for the errors."""
        from_hub(self.name, model_files())
        return LocalModel.named(self.name)


def plan(name: str) -> Download:
    """Asks the hub for the sizes of a model's files. Raises InvalidRequestError if it is not a name
    on the hub, and ModelLoadError if there is no such model, or the hub cannot be reached.
    """
    if not is_hub_name(name):
        raise InvalidRequestError(
            f"{name} is not a name on the hub, such as mlx-community/Qwen3-4B-4bit."
        )
    from huggingface_hub import HfApi  # noqa: PLC0415  (rarely needed)

    with hub_errors(name):
        siblings = HfApi().model_info(name, files_metadata=True).siblings or ()
    sizes, weights = dict[str, int](), 0
    for file in siblings:
        if any(fnmatch(file.rfilename, pattern) for pattern in model_files()):
            blob = file.lfs.sha256 if file.lfs else file.blob_id
            sizes[blob or file.rfilename] = file.size or 0
            weights += (file.size or 0) if fnmatch(file.rfilename, WEIGHTS) else 0
    if not weights:
        raise ModelLoadError(
            f"{name} has no {WEIGHTS}; MLX does not load GGUF files, so use a model in safetensors "
            "form, for example from mlx-community."
        )
    return Download(name, sizes, weights)


def check_removable(model: LocalModel) -> None:
    """Raises an `InvalidRequestError` if a model is bundled, or in one of the user's folders."""
    if model.place == "bundled":
        raise InvalidRequestError(f"{model.name} comes with the program and cannot be deleted.")
    if model.place == "folder":
        raise InvalidRequestError(
            f"{model.name} is in a folder of yours, not in the hub's cache; delete it yourself."
        )


def remove(model: LocalModel) -> int:
    """Deletes all revisions of a model from the hub's cache; returns the bytes freed. Raises
    InvalidRequestError (see `check_removable`), and AkunuError if some files could not be deleted.
    """
    check_removable(model)
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415  (rarely needed)

    found = scan_cache_dir(hub_cache())
    own = [it for it in found.repos if (it.repo_type, it.repo_id) == ("model", model.name)]
    revisions = [revision.commit_hash for it in own for revision in it.revisions]
    # Only from this repository: others, such as mirrors, may have the same commits.
    strategy = replace(found, repos=frozenset(own)).delete_revisions(*revisions)
    strategy.execute()
    if cached_model(model.name) is not None:
        raise AkunuError(
            f"{model.name} could not be deleted from {hub_cache()}; delete it yourself."
        )
    return strategy.expected_freed_size
