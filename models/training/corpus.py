"""The Python source that a machine already has, split into training and held-out files.

Reads the running interpreter's standard library and the installed distributions whose licence
is permissive. The split depends on a file's package and path alone, so any machine derives the
same held-out files. Knows nothing of tokens; needs nothing but the standard library.
"""

import hashlib
import json
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

STDLIB = "python-stdlib"
HELD_OUT_PACKAGES = frozenset({"anyio", "click", "h11", "markdown-it-py", "pluggy"})
HELD_OUT_PERCENT = 4
MAX_PACKAGE_LENGTH = 1_000_000
MAX_TEST_LENGTH = 2_000_000
MAX_FILE_BYTES = 120_000
WINDOW_LINES = 6

_PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|PSF|Python Software Foundation|MPL|Mozilla Public License|ISC|HPND"
    r"|Zope Public License|ZPL|Zlib|CC0|Unlicense)\b",
    re.IGNORECASE,
)
_COPYLEFT = re.compile(r"\b(A|L)?GPL|General Public License|Proprietary", re.IGNORECASE)
_SKIPPED_FOLDERS = frozenset({"_vendor", "vendor", "vendored", "locale", "idle_test", "lib2to3"})
_SOURCES_PAGE = """# What ember learned from

Python source under permissive licences, as installed when the corpus was made: {training:,}
characters for training. Held out and never trained on: {held_out:,} characters, which are all of
{packages}, and one file in twenty-five of every other package.
The short edits, conversations and requests outside its training are made up by `models/training`,
from words and phrases that were written for this project (`phrases.txt`, `wordings.txt`,
`choices.toml`). At most {cap:,} characters of a package were read, and the library's own tests up
to {tests:,}.

| package | version | licence as its metadata states it | characters trained on |
| --- | --- | --- | ---: |
"""


@dataclass(frozen=True)
class SourceFile:
    """One file: `path` is relative to its root, `is_test` by the name of a folder or file."""

    package: str
    path: str
    text: str

    @property
    def is_test(self) -> bool:
        parts = Path(self.path).parts
        return bool({"test", "tests", "testing"} & {*parts}) or parts[-1].startswith("test_")

    @property
    def held_out(self) -> bool:
        """Whole packages, and a fixed share of the files of every other package."""
        if self.package in HELD_OUT_PACKAGES:
            return True
        digest = hashlib.blake2b(f"{self.package}/{self.path}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") % 100 < HELD_OUT_PERCENT


def licence_of(distribution: Distribution) -> str:
    """The licence as the distribution's metadata states it, or an empty string."""
    metadata = distribution.metadata
    expression, plain = (
        (metadata.get_all(name) or [""])[0] for name in ("License-Expression", "License")
    )
    classifiers = [
        classifier.split("::")[-1].strip()
        for classifier in metadata.get_all("Classifier") or []
        if classifier.startswith("License ::")
    ]
    return expression or ", ".join(classifiers) or plain.strip().split("\n")[0][:60]


def is_permissive(licence: str) -> bool:
    """True where the statement names a licence that allows this use and no copyleft one."""
    return bool(_PERMISSIVE.search(licence)) and not _COPYLEFT.search(licence)


def _readable(root: Path, path: Path) -> str | None:
    """The text of a file worth learning from; None for generated, huge or odd ones."""
    if _SKIPPED_FOLDERS & set(path.parts) or "site-packages" in path.parts:
        return None
    try:
        raw = (root / path).read_bytes()
        if not 200 <= len(raw) <= MAX_FILE_BYTES:
            return None
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return None
    lines = text.split("\n")
    long_lines = sum(len(line) > 120 for line in lines)
    mostly_ascii = len(text) > 0.97 * len(raw)
    return text if mostly_ascii and long_lines <= 0.02 * len(lines) else None


def standard_library() -> Iterator[SourceFile]:
    """Every readable file of the interpreter's library, tests included."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        text = _readable(root, path)
        if text is not None:
            yield SourceFile(STDLIB, path.as_posix(), text)


def package_files(distribution: Distribution) -> Iterator[SourceFile]:
    """Every readable Python file that an installed distribution lists."""
    root = Path(str(distribution.locate_file("")))
    name = distribution.metadata["Name"]
    for path in sorted(str(file) for file in distribution.files or [] if file.suffix == ".py"):
        text = None if path.startswith("..") else _readable(root, Path(path))
        if text is not None:
            yield SourceFile(name, path, text)


def _capped(files: Iterable[SourceFile], limit: int) -> list[SourceFile]:
    """A package's files in hash order until `limit` characters, so that none dominates."""

    def order(file: SourceFile) -> bytes:
        return hashlib.blake2b(file.path.encode(), digest_size=8).digest()

    kept, size = [], 0
    for file in sorted(files, key=order):
        if size < limit or file.held_out:
            kept.append(file)
            size += len(file.text)
    return kept


def read_all() -> tuple[list[SourceFile], list[dict[str, str]]]:
    """Every file that may be used, capped per package, and the packages they came from."""
    library = list(standard_library())
    files = [file for file in library if not file.is_test]
    files += _capped((file for file in library if file.is_test), MAX_TEST_LENGTH)
    packages = [{"name": STDLIB, "version": platform.python_version(), "licence": "PSF-2.0"}]
    for distribution in sorted(distributions(), key=lambda d: d.metadata["Name"].lower()):
        licence = licence_of(distribution)
        if not is_permissive(licence):
            continue
        found = _capped(package_files(distribution), MAX_PACKAGE_LENGTH)
        if found:
            files += found
            name = distribution.metadata["Name"]
            packages.append({"name": name, "version": distribution.version, "licence": licence})
    return files, packages


def windows(text: str) -> set[bytes]:
    """Hashes of every `WINDOW_LINES` consecutive lines of code, indentation and comments aside."""
    stripped = (line.strip() for line in text.split("\n"))
    lines = [line for line in stripped if len(line) > 3 and not line.startswith("#")]
    return {
        hashlib.blake2b("\n".join(lines[at : at + WINDOW_LINES]).encode(), digest_size=8).digest()
        for at in range(len(lines) - WINDOW_LINES + 1)
    }


def split(files: Iterable[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
    """Training and held-out files, deduplicated.

    A training file that shares one window of code with a held-out file is dropped, and so is
    one whose windows have for the most part been seen in an earlier training file.
    """
    training: list[SourceFile] = []
    held_out: list[SourceFile] = []
    for file in files:
        (held_out if file.held_out else training).append(file)
    forbidden: set[bytes] = set().union(*(windows(file.text) for file in held_out))
    kept: list[SourceFile] = []
    seen: set[bytes] = set()
    for file in training:
        own = windows(file.text)
        if own & forbidden or len(own & seen) > len(own) / 2:
            continue
        seen |= own
        kept.append(file)
    return kept, held_out


def write(folder: Path) -> Counter[str]:
    """Write `corpus.jsonl` and `packages.json` to `folder`; returns characters by split."""
    files, packages = read_all()
    training, held_out = split(files)
    sizes: Counter[str] = Counter()
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as out:
        for name, part in (("training", training), ("held_out", held_out)):
            for file in part:
                sizes[name] += len(file.text)
                out.write(json.dumps({"split": name, **asdict(file)}) + "\n")
    used = {file.package for file in training + held_out}
    listed = [package for package in packages if package["name"] in used]
    (folder / "packages.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return sizes


def read(folder: Path, split_name: str) -> list[SourceFile]:
    """The files of one split as `write` left them."""
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return [
            SourceFile(row["package"], row["path"], row["text"])
            for row in rows
            if row["split"] == split_name
        ]


def sources_page(folder: Path) -> str:
    """The packages a model learned from, as a Markdown page of its card."""
    sizes = {name: Counter[str]() for name in ("training", "held_out")}
    for name, counted in sizes.items():
        for file in read(folder, name):
            counted[file.package] += len(file.text)
    rows = json.loads((folder / "packages.json").read_text(encoding="utf-8"))
    lines = [
        f"| {row['name']} | {row['version']} | {row['licence'].replace('|', '/')} "
        f"| {sizes['training'][row['name']]:,} |\n"
        for row in sorted(rows, key=lambda row: row["name"].lower())
    ]
    header = _SOURCES_PAGE.format(
        training=sizes["training"].total(),
        held_out=sizes["held_out"].total(),
        packages=", ".join(sorted(HELD_OUT_PACKAGES)),
        cap=MAX_PACKAGE_LENGTH,
        tests=MAX_TEST_LENGTH,
    )
    return header + "".join(lines)
