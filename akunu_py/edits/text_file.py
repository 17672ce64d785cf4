"""TextFile: the text of a file, and the file with another text in it.

A model sees text with `\\n` as line ends. Line ends, encoding, byte order mark, mode and, where
allowed, owner of the file stay as they are, and links lead to the same file. A file is replaced in
one step or not at all.
"""

import codecs
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from akunu_py.edits.growing import LineMatcher
from akunu_py.errors import EditError, InvalidRequestError
from akunu_py.package import open_file, replacement

BACKUP: Final = ".bak"
"""How the names of copies of files end."""

_LINE_END: Final = re.compile(r"\r?\n")
_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


@dataclass(frozen=True)
class TextFile:
    """A file as it was read: its bytes, a byte order `mark` among them; the encoding after it,
    Latin-1, which can hold any bytes, if they are not UTF-8; and the text, with `\\n` as line ends.
    `name` is its path, for sentences.
    """

    name: str
    content: bytes
    mark: bytes
    encoding: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file; an `InvalidRequestError` says why it holds no text."""
        try:
            with open_file(Path(os.path.realpath(path)), own=False) as file:
                return cls.of(str(path), file.read())
        except OSError as error:
            why = error.strerror or error
            raise InvalidRequestError(f"{path} cannot be read: {why}.") from None

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        """The text in some bytes; refuses as `read`."""
        mark = next((mark for mark in _MARKS if content.startswith(mark)), b"")
        encoding, coded = _MARKS.get(mark, "utf-8"), content[len(mark) :]
        try:
            text = coded.decode(encoding)
        except UnicodeDecodeError:
            encoding, text = "latin-1", coded.decode("latin-1")
        if "\0" in text:
            raise InvalidRequestError(f"{name} is not a text file.")
        return cls(name, content, mark, encoding, _LINE_END.sub("\n", text))

    def encode(self, text: str) -> bytes:
        """The bytes of the file with another text; an `EditError` if its encoding lacks a
        character.

        Of files with different line ends, unchanged lines keep theirs.
        """
        ends = _LINE_END.findall(self.content[len(self.mark) :].decode(self.encoding))
        usual = Counter(ends).most_common(1)[0][0] if ends else "\n"
        lines = text.split("\n")
        kept = [usual] * len(lines)
        if len(set(ends)) > 1:
            before = self.text.split("\n")
            for i, j, size in LineMatcher(before, lines).get_matching_blocks():
                kept[j : j + size] = [*ends, usual][i : i + size]
        kept[-1] = ""
        try:
            joined = "".join(line + end for line, end in zip(lines, kept, strict=True))
            return self.mark + joined.encode(self.encoding)
        except UnicodeEncodeError as error:
            lacking = error.object[error.start]
            raise EditError(
                f"The answer has {lacking!r}, which {self.name} cannot contain: its encoding is "
                f"{self.encoding.upper()}."
            ) from None

    def write(self, text: str, *, backup: bool = False) -> None:
        """Replaces the file, if nobody else has changed it; with `backup`, a file beside it, whose
        name ends in `BACKUP`, gets what it had. Raises EditError, and leaves the file as it was, if
        it cannot.
        """
        content, path = self.encode(text), Path(os.path.realpath(self.name))
        try:
            mode = path.stat().st_mode
            if not mode & 0o222 or not os.access(path, os.W_OK):
                raise EditError(f"{self.name} is read-only.")
            if backup:
                self._check_unchanged(path)
                with replacement(copy := path.with_name(path.name + BACKUP)) as file:
                    file.write(self.content)
                os.chmod(copy, mode & 0o777)
            with replacement(path) as file:
                file.write(content)
                file.flush()
                self._check_unchanged(path)  # last, just before it is replaced
        except OSError as error:
            why = error.strerror or error
            raise EditError(f"{self.name} could not be written: {why}.") from None

    def write_to(self, output: Path, text: str) -> None:
        """Puts another text into another file, which is replaced, or a pipe or device; into this
        one as `write` does, with the same errors."""
        path = Path(os.path.realpath(output))
        if path == Path(os.path.realpath(self.name)):
            return self.write(text)
        content = self.encode(text)
        try:
            if output.exists() and not output.is_file():
                output.write_bytes(content)
                return None
            path.touch()  # a new file has the usual mode
            with replacement(path) as file:
                file.write(content)
        except OSError as error:
            raise EditError(f"{output} could not be written: {error.strerror or error}.") from None

    def _check_unchanged(self, path: Path) -> None:
        if path.read_bytes() != self.content:
            raise EditError(f"{self.name} has changed since it was read; ask again.")


def check_output(output: Path) -> None:
    """Refuses a file that `TextFile.write_to` cannot write, with an `InvalidRequestError`."""
    folder = Path(os.path.realpath(output)).parent
    if output.is_dir():
        raise InvalidRequestError(f"{output} is a folder.")
    if not folder.is_dir():
        raise InvalidRequestError(f"There is no folder {folder}.")
    if output.exists():
        if not output.stat().st_mode & 0o222 or not os.access(output, os.W_OK):
            raise InvalidRequestError(f"{output} is read-only.")
        if not output.is_file():
            return  # a pipe or a device, which is not replaced
    if not os.access(folder, os.W_OK):
        raise InvalidRequestError(f"No file can be written in {folder}.")
