"""PromptStore: cached prompts on disk, for later processes.

A file holds a stretch of a text, its tokens and their caches, and names the file with the text
before it: a longer conversation adds a file, and a shared beginning is stored once. Files never
change; damaged ones are deleted and computed again. Memory holds only the tokens of each file.
"""

import json
import logging
import os
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Final

import mlx_lm

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.prompt_file import (
    FORMAT,
    DamagedFileError,
    PromptContent,
    PromptHead,
    discard,
    read_head,
    read_prompt,
    remove_unfinished,
    touch,
)
from akunu_py.cache.states import Checkpoint
from akunu_py.errors import InvalidRequestError
from akunu_py.package import make_private
from akunu_py.tokens import common_prefix_length

DEFAULT_BYTES: Final = 8_000_000_000
"""Bytes that the files of a folder may take if the user sets no limit."""

_STRETCH: Final = 2048
"""The most tokens of a file: a request waits while one is written."""
_LEAST: Final = 32
"""Fewer new tokens than this are not worth a file."""
_READ_PER_TOKEN: Final = 16
"""Reading this many tokens takes no longer than computing one."""
_GROWTH: Final = 1.25
"""A single file is replaced as a whole, once the text is this many times as long."""
_CHECKPOINTS: Final = 3
"""Checkpoints in the last file of a text: at the ends of the answer and of the prompt, and one
more, because templates change the end of a prompt. Files in the middle have one."""
_MAX_FILES: Final = 4096

logger = logging.getLogger(__name__)


class PromptStore:
    """The files of a model in a folder, which other models may share, of at most `limit` bytes; or
    a `single` file. Nobody else may be able to write there. Files have the form of `cache`, which
    holds one token. Raises InvalidRequestError if the place cannot be used, or the cache not
    stored.
    """

    def __init__(
        self,
        place: Path,
        fingerprint: str,
        cache: KVCache,
        *,
        limit: int = DEFAULT_BYTES,
        single: bool = False,
    ) -> None:
        if not cache.can_rollback:
            raise InvalidRequestError(
                "Prompts cannot be kept on disk: this model keeps its context in "
                f"{' and '.join(cache.unknown_kinds)}."
            )
        words = json.dumps([FORMAT, mlx_lm.__version__, fingerprint, cache.kinds])
        self.single = single
        self._key = sha256(words.encode()).hexdigest()
        self._by_checkpoint = cache.needs_checkpoints
        self._like = cache
        self._place = Path(os.path.realpath(place))  # files that are links are not read
        self._limit = limit
        self._heads: dict[Path, PromptHead] = {}  # the beginnings of texts first
        self._full_is_said = False
        try:
            (self._open_file if single else self._open_folder)()
        except OSError as error:
            raise InvalidRequestError(
                f"Prompts cannot be kept in {place}: {error.strerror or error}."
            ) from error

    def find(self, prompt: Sequence[int], shared: int) -> tuple[list[Path], int] | None:
        """The files with the longest usable beginning of a prompt, and the length of that.

        None if reading them does not pay: `shared` tokens are in memory already, and the last token
        is always computed.
        """
        found, length = None, 0
        if len(prompt) - 1 - shared < _LEAST:
            return None
        for path, matched in self._matches(prompt).items():
            usable, head = min(matched, len(prompt) - 1), self._heads[path]
            if self._by_checkpoint:
                usable = max((at for at in head.checkpoints if at <= usable), default=0)
            floor = max(self._heads[one].floor for one in self._chain(path))
            if usable > max(length, head.start, floor - 1):
                found, length = path, usable
        worth_it = length - shared >= max(_LEAST, length // _READ_PER_TOKEN)
        return (self._chain(found), length) if found is not None and worth_it else None

    def load(self, found: tuple[list[Path], int], cache: KVCache) -> bool:
        """Fills an empty cache with what `find` found.

        False if a file is gone, damaged or changed: drop the cache, and call `find` again.
        """
        chain, length = found
        stops = [*(self._heads[path].start for path in chain[1:]), length]
        checkpoints: list[Checkpoint] = []
        for path, stop in zip(chain, stops, strict=True):
            own = self._heads[path]
            try:
                head, rows, kept = read_prompt(path)
                if head.key != own.key:
                    raise FileNotFoundError(path)  # another model's process has replaced it
                if not self._like.fits(rows, kept, len(head.tokens)):
                    raise DamagedFileError("it does not fit this model")
            except (OSError, DamagedFileError) as error:
                del self._heads[path]
                discard(path, error)
                return False
            if head != own:  # another process's file has other checkpoints, or is quantized
                self._heads[path] = head
                return False
            count = stop - head.start
            cache.append_rows([tuple(part[..., :count, :] for part in layer) for layer in rows])
            checkpoints += [one for one in kept if one.length <= stop]
        cache.resume(length, checkpoints[-2:])  # the end, and where the next turn may part from it
        touch(chain)
        return True

    def save(self, tokens: Sequence[int], cache: KVCache, *, closing: bool = False) -> bool:
        """Writes the next file of the text in a cache, if there is enough new text; returns whether
        there is more. With `closing`, even a slightly longer text replaces a single file."""
        try:
            return self._save(tokens, cache, closing)
        except Exception as error:  # whatever it is, requests can still be served
            logger.warning("A prompt could not be saved in %s: %s", self._place, error)
            return False

    def _save(self, tokens: Sequence[int], cache: KVCache, closing: bool) -> bool:
        chain, start = ([], 0) if self.single else self._branch(tokens)
        if len(tokens) - start < _LEAST or (self.single and not self._outdated(tokens, closing)):
            return False
        whole = self.single or len(tokens) - start < _STRETCH + _LEAST
        stop = len(tokens) if whole else start + _STRETCH
        kept = [one for one in cache.checkpoints if start < one.length <= stop]
        kept = kept[-(_CHECKPOINTS if whole else 1) :]
        head = PromptHead(
            key=self._key,
            parent=chain[-1].name if chain else "",
            start=start,
            tokens=array("I", tokens[start:stop]),
            floor=max([cache.floor, *(self._heads[one].floor for one in chain)]),
            checkpoints=tuple(one.length for one in kept),
        )
        if cache.head is not None:
            cache.head.read()
            cache.head.fill(stop)
        content = PromptContent(head, cache.rows(start, stop), kept)
        path = self._place if self.single else self._path(head)
        if gone := [one for one in chain if not one.exists()]:  # another process's doing
            del self._heads[gone[0]]
            return True
        if not self.single and not self._make_room(chain, content.nbytes):
            return False
        if not self.single:
            make_private(self._place)  # somebody may have deleted it
        content.write(path)
        touch([*chain, path])
        self._heads = _sorted({**self._heads, path: head})
        return stop < len(tokens)

    def _open_folder(self) -> None:
        make_private(self._place)
        remove_unfinished(self._place, "akunu-*")
        self._trim(self._limit)
        heads = {}
        for path in self._place.glob(f"akunu-{self._key[:16]}-*.safetensors"):
            try:
                heads[path] = read_head(path)
            except (OSError, DamagedFileError) as error:
                discard(path, error)
        self._heads = _sorted(heads)

    def _open_file(self) -> None:
        if not os.access(self._place.parent, os.W_OK):
            raise FileNotFoundError(f"there is no folder {self._place.parent} to write to")
        remove_unfinished(self._place.parent, escape(self._place.name))
        if not self._place.exists():
            return
        try:
            head = read_head(self._place)
        except (OSError, DamagedFileError) as error:
            raise InvalidRequestError(
                f"{self._place} is not a prompt cache of yours: {error}; choose another file."
            ) from error
        if head.key == self._key:
            self._heads[self._place] = head
        else:
            logger.warning("%s belongs to another model; it will be replaced", self._place)

    def _matches(self, tokens: Sequence[int]) -> dict[Path, int]:
        """How many of the first `tokens` each file's text shares, for files whose earlier text is
        shared completely."""
        wanted = array("I", tokens)
        shared: dict[str, int] = {"": 0}
        matches = {}
        for path, head in self._heads.items():
            if head.start <= shared.get(head.parent, -1):
                own = common_prefix_length(head.tokens, wanted[head.start : head.stop])
                matches[path] = shared[path.name] = head.start + own
        return matches

    def _branch(self, tokens: Sequence[int]) -> tuple[list[Path], int]:
        """The files that hold the beginning of a text, and how many of its tokens they hold."""
        chain: list[Path] = []
        length = 0
        for path, matched in self._matches(tokens).items():
            head = self._heads[path]
            is_worth_reading = matched == head.stop or matched - head.start >= _LEAST
            if is_worth_reading and matched > length and head.floor <= len(tokens):
                chain, length = self._chain(path), matched
        return chain, length

    def _chain(self, path: Path) -> list[Path]:
        chain = [path]
        while parent := self._heads[chain[0]].parent:
            chain.insert(0, self._place / parent)
        return chain

    def _outdated(self, tokens: Sequence[int], closing: bool) -> bool:
        old = max((head.stop for head in self._heads.values()), default=0)
        shared = max(self._matches(tokens).values(), default=0)
        if shared < old:
            return shared < len(tokens)
        return len(tokens) > old and (closing or len(tokens) >= _GROWTH * old)

    def _path(self, head: PromptHead) -> Path:
        words = json.dumps([head.key, head.parent, head.start, head.tokens.tolist()])
        digest = sha256(words.encode()).hexdigest()
        return self._place / f"akunu-{self._key[:16]}-{digest[:32]}.safetensors"

    def _make_room(self, chain: Sequence[Path], nbytes: int) -> bool:
        """Deletes other files for a new one; False if it does not fit next to its own chain."""
        if nbytes + sum(path.stat().st_size for path in chain) > self._limit:
            if not self._full_is_said:
                logger.warning(
                    "--prompt-cache-bytes (%s) is too small to save a whole prompt in %s",
                    f"{self._limit:,}",
                    self._place,
                )
            self._full_is_said = True
            return False
        touch(chain)
        self._trim(self._limit - nbytes)
        return True

    def _trim(self, limit: int) -> None:
        found = []
        for path in self._place.glob("akunu-*.safetensors"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        found.sort()
        nbytes, count = sum(size for _, size, _ in found), len(found)
        for _, size, path in found:
            if nbytes <= limit and count < _MAX_FILES:
                return
            path.unlink(missing_ok=True)
            self._heads.pop(path, None)
            nbytes, count = nbytes - size, count - 1


def _sorted(heads: Mapping[Path, PromptHead]) -> dict[Path, PromptHead]:
    return dict(sorted(heads.items(), key=lambda item: item[1].start))
