"""A file with a cached prompt: safetensors with a checksum, whose metadata describe the arrays in
JSON. Reading returns exactly what was written, or raises a `DamagedFileError`.
"""

import json
import logging
import os
import zlib
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time, time_ns
from typing import Any, BinaryIO, Final

import mlx.core as mx

from akunu_py.cache.states import Checkpoint
from akunu_py.package import UNFINISHED, open_file, replacement

FORMAT: Final = "akunu-py prompt cache 1"

_SUM_BEGINS: Final = b'"checksum":"'
_NO_SUM: Final = "0" * 8
_CHUNK: Final = 1 << 20
_LENGTH_BYTES: Final = 8
"""A safetensors file begins with the length of its header."""
_BYTES_PER_ARRAY: Final = 160
"""Bytes of the header for an array, at most."""
_DEAD_S: Final = 60.0
"""An unfinished file that has not changed for this long is left over from a crash."""

_SENSELESS: Final = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""The exceptions raised where JSON has another form than what was written."""

logger = logging.getLogger(__name__)

Rows = Sequence[Sequence[mx.array]]
"""The result of `KVCache.rows`."""


class DamagedFileError(ValueError):
    """A file differs from what was written."""


@dataclass(frozen=True)
class PromptHead:
    """A file's description, without its arrays. `key` identifies the model and options; `parent`
    names the file with the tokens before `start`, if any; no text shorter than `floor` may use it;
    `checkpoints` are lengths, the shortest first.
    """

    key: str
    parent: str
    start: int
    tokens: "array[int]"
    floor: int
    checkpoints: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


class PromptContent:
    """A prompt's arrays, ready to be written; the file takes at most `nbytes`."""

    def __init__(self, head: PromptHead, rows: Rows, checkpoints: Sequence[Checkpoint]) -> None:
        self._arrays: dict[str, mx.array] = {}
        content = {
            "key": head.key,
            "parent": head.parent,
            "start": head.start,
            "tokens": head.tokens.tolist(),
            "floor": head.floor,
            "rows": _pack(list(rows), self._arrays),
            "checkpoints": [
                [one.length, _pack(one.states, self._arrays), _pack(one.windows, self._arrays)]
                for one in checkpoints
            ],
        }
        self._metadata = {
            "format": FORMAT,
            "checksum": _NO_SUM,
            "content": json.dumps(content, separators=(",", ":")),
        }
        described = 2 * len(self._metadata["content"]) + _BYTES_PER_ARRAY * (len(self._arrays) + 2)
        self.nbytes = described + sum(one.nbytes for one in self._arrays.values())

    def write(self, path: Path) -> None:
        """Replaces a file in one step; if that fails, the old file stays."""
        with replacement(path) as file:
            mx.save_safetensors(file, self._arrays, self._metadata)
            place, checksum = _checksum(file)
            file.seek(place)
            file.write(checksum)


def read_head(path: Path) -> PromptHead:
    """Reads a file's description; does not check the checksum."""
    with open_file(path) as file:
        header = _header(file)[_LENGTH_BYTES:]
    try:
        return _head_of(_content_of(json.loads(header)["__metadata__"]))
    except _SENSELESS as error:
        raise DamagedFileError("its header is invalid") from error


def read_prompt(path: Path) -> tuple[PromptHead, Rows, list[Checkpoint]]:
    """Reads a file, without checking whether its arrays fit a model."""
    with open_file(path) as file:
        place, checksum = _checksum(file)
        file.seek(place)
        if file.read(len(checksum)) != checksum:
            raise DamagedFileError("its checksum is wrong")
        file.seek(0)
        try:
            loaded: Any = mx.load(file, format="safetensors", return_metadata=True)
        except RuntimeError as error:
            raise DamagedFileError("its content makes no sense") from error
    try:
        arrays, metadata = loaded
        content = _content_of(metadata)
        rows = _unpack(content["rows"], arrays)
        checkpoints = [
            Checkpoint(int(length), _unpack(states, arrays), _unpack(windows, arrays))
            for length, states, windows in content["checkpoints"]
        ]
        return _head_of(content), rows, checkpoints
    except _SENSELESS as error:
        raise DamagedFileError("its content makes no sense") from error


def touch(chain: Sequence[Path]) -> None:
    """Marks files as used now, in an order such that the beginning of a text is deleted last."""
    for now, path in enumerate(reversed(chain), time_ns()):
        with suppress(OSError):
            os.utime(path, ns=(now, now))


def discard(path: Path, error: Exception) -> None:
    """Deletes a file that cannot be used, and logs why."""
    if not isinstance(error, FileNotFoundError):
        logger.warning("%s was ignored and deleted: %s", path, error)
        with suppress(OSError):
            path.unlink()


def remove_unfinished(folder: Path, names: str) -> None:
    """Deletes unfinished files left over from a crash; `names` is a pattern."""
    for path in folder.glob(f".{names}.*{UNFINISHED}"):
        with suppress(OSError):
            if path.stat().st_mtime < time() - _DEAD_S:
                path.unlink()


def _content_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    if metadata["format"] != FORMAT:
        raise ValueError("another format")
    content: dict[str, Any] = json.loads(metadata["content"])
    return content


def _head_of(content: Mapping[str, Any]) -> PromptHead:
    head = PromptHead(
        str(content["key"]),
        str(content["parent"]),
        int(content["start"]),
        array("I", content["tokens"]),
        int(content["floor"]),
        tuple(int(length) for length, *_ in content["checkpoints"]),
    )
    lengths = [head.start, *head.checkpoints, head.stop + 1]
    is_rising = lengths == sorted(set(lengths))
    if not is_rising or head.start < 0 or bool(head.start) != bool(head.parent):
        raise ValueError("impossible lengths")
    return head


def _header(file: BinaryIO) -> bytes:
    length = file.read(_LENGTH_BYTES)
    size = int.from_bytes(length, "little")
    if size > os.fstat(file.fileno()).st_size:
        raise DamagedFileError("it is cut short")
    return length + file.read(size)


def _checksum(file: BinaryIO) -> tuple[int, bytes]:
    """The place of a file's checksum, and its correct value: the sum over all other bytes."""
    file.seek(0)
    header = _header(file)
    place = header.find(_SUM_BEGINS) + len(_SUM_BEGINS)
    if place < len(_SUM_BEGINS):
        raise DamagedFileError("it has no checksum")
    total = zlib.crc32(header[place + len(_NO_SUM) :], zlib.crc32(header[:place]))
    while chunk := file.read(_CHUNK):
        total = zlib.crc32(chunk, total)
    return place, b"%08x" % total


def _pack(value: Any, arrays: dict[str, mx.array]) -> Any:
    if isinstance(value, mx.array):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if isinstance(value, list):
        return [_pack(held, arrays) for held in value]
    if isinstance(value, tuple):
        return {"tuple": [_pack(held, arrays) for held in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(held, arrays)] for key, held in value.items()]}
    return value


def _unpack(packed: Any, arrays: Mapping[str, mx.array]) -> Any:
    if isinstance(packed, list):
        return [_unpack(held, arrays) for held in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, held),) = packed.items()
    if kind == "array":
        return arrays[held]
    if kind == "tuple":
        return tuple(_unpack(part, arrays) for part in held)
    return {key: _unpack(part, arrays) for key, part in held}
