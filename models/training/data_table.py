"""The packages a model learned from, as a page of its card."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from models.training import corpus

HEADER = """# What ember learned from

Python source under permissive licences, as installed when the corpus was made: {training:,}
characters for training. Held out and never trained on: {held_out:,} characters, which are all of
{packages}, and one file in twenty-five of every other package.
The short edits, conversations and requests outside its training are made up by `models/training`,
from words and phrases that were written for this project (`phrases.txt`, `wordings.txt`,
`chats.py`). At most {cap:,} characters of a package were read, and the library's own tests up to
{tests:,}.

| package | version | licence as its metadata states it | characters trained on |
| --- | --- | --- | ---: |
"""


def page(work: Path) -> str:
    """The page as Markdown, from `packages.json` and the corpus of a work folder."""
    sizes = {name: Counter[str]() for name in ("training", "held_out")}
    for name, counted in sizes.items():
        for file in corpus.read(work, name):
            counted[file.package] += len(file.text)
    rows = json.loads((work / "packages.json").read_text(encoding="utf-8"))
    lines = [
        f"| {row['name']} | {row['version']} | {row['licence'].replace('|', '/')} "
        f"| {sizes['training'][row['name']]:,} |\n"
        for row in sorted(rows, key=lambda row: row["name"].lower())
    ]
    header = HEADER.format(
        training=sizes["training"].total(),
        held_out=sizes["held_out"].total(),
        packages=", ".join(sorted(corpus.HELD_OUT_PACKAGES)),
        cap=corpus.MAX_PACKAGE_LENGTH,
        tests=corpus.MAX_TEST_LENGTH,
    )
    return header + "".join(lines)
