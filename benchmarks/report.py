"""Where benchmark scripts leave their results: a table on the screen, Markdown and JSON on disk."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; every cell is turned into text as it is."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def record(name: str, title: str, body: str, result: dict[str, Any]) -> None:
    """Writes `results/NAME.md` and `.json`, and prints both, the JSON as the last line."""
    RESULTS.mkdir(exist_ok=True)
    text = f"# {title}\n\n{body}\n"
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(text)
    print(json.dumps(result))
