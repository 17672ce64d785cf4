"""Finds a model's files: bundled with the package, in a folder, or on the hub.

A name comes in, a folder with a `config.json` goes out, or a `ModelLoadError` is raised.
"""

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from akunu_py.errors import ModelLoadError, ModelNotFoundError
from akunu_py.options import BUNDLED_MODEL
from akunu_py.package import open_file

_TOKENIZER_FILES: Final = (
    "tokenizer*", "tokenization*.py", "vocab*", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "*.tiktoken", "tiktoken.model",
)  # fmt: skip
WEIGHTS: Final = "model*.safetensors"
HEAD_FILES: Final = ("mtp.safetensors", "mtp/weights.safetensors")
"""The files with a model's head, if it is not among the weights."""
_INDEX: Final = "model.safetensors.index.json"
_HUB_FILES: Final = (
    "*.json", "*.jsonl", "*.py", "tokenizer.model", "tiktoken.model", "*.tiktoken", "*.txt",
    "*.jinja",
)  # fmt: skip
"""mlx-lm's patterns, without the weights."""
CONTEXT_KEYS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "model_max_length", "max_context_length",
)  # fmt: skip
FALLBACK_CONTEXT: Final = 4096
_MOST_JSON_BYTES: Final = 4 << 20
_MOST_INDEX_BYTES: Final = 16 << 20
"""The list of the tensors of the largest models takes 10 MB."""
_LONGEST_REVISION: Final = 256


def read_json(path: Path, most: int = _MOST_JSON_BYTES) -> Any:
    """What a JSON file of a model holds. Raises an OSError or a ValueError if it cannot be read, is
    no regular file, or is too large; links are followed, because the hub's cache consists of them.
    """
    with open_file(Path(os.path.realpath(path)), own=False) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most >> 20} MiB")
    return json.loads(content)


def json_object(path: Path) -> dict[str, Any]:
    """What a JSON file of a model holds; empty if it cannot be read or holds no object."""
    with suppress(OSError, ValueError, RecursionError):
        found = read_json(path)
        if isinstance(found, dict):
            return found
    return {}


def bundled_model() -> Path:
    """The bundled model's folder: inside an installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "bundled" / BUNDLED_MODEL, package.parent / "models" / BUNDLED_MODEL):
        if (folder / "config.json").exists():
            return folder
    raise ModelLoadError(
        "This installation has no bundled model; give --model a folder or a hub name."
    )


def find_model(name: str, *, weights: bool = True) -> Path:
    """The folder of a model: `ember`, a path, or the local copy of `owner/name` on the hub, which
    is fetched if it is missing, with or without its weights. An existing copy is used as it is, so
    that nothing waits for the network; `pull` updates it. Raises ModelLoadError if there is none.
    """
    if name == BUNDLED_MODEL:
        return bundled_model()
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):  # unlike `Path`, it takes names that are too long
        return _checked(folder)
    if os.path.exists(folder):
        raise ModelLoadError(f"{name} is a file; a model is a folder with a config.json.")
    if is_hub_name(name):
        here = cached_model(name)
        if here is not None and _is_whole(here, weights=weights):
            return _checked(here)
        return _checked(from_hub(name, model_files(weights=weights)))
    raise ModelNotFoundError(f"There is no model folder {name}; check the path, or use a hub name.")


def model_files(*, weights: bool = True) -> list[str]:
    """The patterns of the files to fetch from the hub."""
    return [*_HUB_FILES, *((WEIGHTS, *HEAD_FILES) if weights else ())]


def hub_cache() -> Path:
    """The folder of `huggingface_hub`'s cache."""
    from huggingface_hub import constants  # noqa: PLC0415  (rarely needed)

    return Path(constants.HF_HUB_CACHE)


def cached_model(name: str) -> Path | None:
    """The copy of `owner/name` in the hub's cache, perhaps incomplete; None if there is none."""
    repository = hub_cache() / f"models--{name.replace('/', '--')}"
    with suppress(OSError):
        with open_file(repository / "refs" / "main", own=False) as file:
            revision = file.read(_LONGEST_REVISION).decode(errors="replace").strip()
        folder = repository / "snapshots" / revision
        return folder if (folder / "config.json").exists() else None
    return None


def _is_whole(folder: Path, *, weights: bool) -> bool:
    if weights:
        return fault_of_weights(folder) is None
    return any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES)


def _weight_map(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        found = read_json(folder / _INDEX, _MOST_INDEX_BYTES)["weight_map"]
        return {part: file for part, file in found.items() if isinstance(file, str)}
    return {}


def find_head(name: str, is_part: Callable[[str], bool]) -> Path:
    """A folder with a head: a path, or the local copy of `owner/name` on the hub. If that is a
    whole model, only the files with tensors of its head are fetched. Raises ModelLoadError if there
    is none.
    """
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelLoadError(f"{name} is a file; give --mtp the folder that it is in.")
    if not is_hub_name(name):
        raise ModelLoadError(
            f"There is no folder {name} with a head; give --mtp a folder, or OWNER/NAME on the hub."
        )
    folder = from_hub(name, ["config.json", _INDEX, *HEAD_FILES])
    files = _weight_map(folder)
    wanted = sorted({file for part, file in files.items() if is_part(part)}) if files else [WEIGHTS]
    if any((folder / file).exists() for file in HEAD_FILES) or not wanted:
        return folder
    return from_hub(name, wanted)


def tokenizer_fingerprint(folder: Path) -> bytes:
    """A hash (32 bytes) of the files that determine the ids of a text."""
    digest = sha256()
    found = {path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern)}
    for path in sorted(path for path in found if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.digest()


def weight_bytes(folder: Path) -> int:
    """The bytes of the files of a model's weights."""
    return sum(path.stat().st_size for path in folder.glob(WEIGHTS) if path.is_file())


def fault_of_weights(folder: Path) -> str | None:
    """What is visibly wrong with the files of a model's weights, as a sentence."""
    for name in sorted(set(_weight_map(folder).values())):
        if not (folder / name).exists():
            return f"{folder} has no {name}, a part of its weights; download the model again."
    paths = list(folder.glob(WEIGHTS))
    for path in paths:
        if not path.is_file():
            return f"{path} is not a file; download the model again."
        if not os.access(path, os.R_OK):
            return f"You may not read {path}; change its permissions."
    return None if paths else f"{folder} has no {WEIGHTS}: the weights are missing."


def find_adapter(path: str) -> Path:
    """The folder of an adapter that mlx-lm trained; raises a `ModelLoadError` if there is none."""
    folder = Path(os.path.expanduser(path))
    if not folder.is_dir():
        raise ModelLoadError(f"There is no adapter folder {path}; check the path.")
    for name in ("adapter_config.json", "adapters.safetensors"):
        if not (folder / name).is_file():
            raise ModelLoadError(
                f"{folder} is not an adapter that mlx-lm trained: it has no {name}."
            )
    return folder


def model_name(asked: str, folder: Path) -> str:
    """The name of a model: its hub name if it was asked for by that, else its folder's name."""
    by_hub_name = is_hub_name(asked) and not Path(os.path.expanduser(asked)).is_dir()
    return asked if by_hub_name else Path(os.path.abspath(folder)).name


def is_hub_name(name: str) -> bool:
    """Whether a name may be `owner/name` on the hub; a local folder may have such a name too."""
    owner, _, model = name.partition("/")
    return bool(owner and model) and "/" not in model and not name.startswith((".", "~"))


def _checked(folder: Path) -> Path:
    config = folder / "config.json"
    try:
        settings = read_json(config)
    except FileNotFoundError:
        raise ModelLoadError(
            f"{folder} is not a model: it has no config.json. MLX does not load GGUF files; "
            "use a model in safetensors form, for example from mlx-community."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelLoadError(f"{config} cannot be read: {reason}.") from error
    if not isinstance(settings, dict):
        raise ModelLoadError(f"{config} is not a JSON object.")
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelLoadError(f"{path} is not a regular file.")
    return folder


def from_hub(name: str, files: list[str]) -> Path:
    """Fetches those of these files that are missing or changed; returns the local copy's folder."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow, and rarely needed)

    with hub_errors(name):
        return Path(snapshot_download(name, allow_patterns=files))


@contextmanager
def hub_errors(name: str) -> Generator[None, None, None]:
    """Turns the errors of the hub's library about a model into a `ModelLoadError`."""
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError:
        raise ModelLoadError(
            f"{name} requires you to accept its terms on the hub; then run `hf auth login`."
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFoundError(
            f"There is neither a folder nor a model on the hub called {name}."
        ) from None
    except Exception as error:  # of the hub's own, of its HTTP client, or of the system
        reason = getattr(error, "strerror", None)
        raise ModelLoadError(
            f"{name} is not a folder here and could not be fetched from the hub"
            f"{f' ({reason})' if reason else ''}; check the name and the network, or give the path "
            "of a model folder."
        ) from None
