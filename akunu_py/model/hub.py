"""Fetches models from the hub and deletes them, through `huggingface_hub`: with its cache, token,
progress bars and resuming. Only `pull` uses the network."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from akunu_py.errors import AkunuError, InvalidRequestError, ModelLoadError
from akunu_py.model.files import (
    WEIGHTS,
    cached_model,
    from_hub,
    hub_cache,
    hub_errors,
    is_hub_name,
    model_files,
)
from akunu_py.model.library import LocalModel


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
