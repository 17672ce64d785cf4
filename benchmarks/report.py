"""Where benchmark scripts leave their results: a table on the screen, Markdown and JSON on disk."""

import json
from pathlib import Path
from typing import Any

from akunu_py.bench.markdown import markdown_table

__all__ = ["markdown_table", "record"]

RESULTS = Path(__file__).parent / "results"


def record(name: str, title: str, body: str, result: dict[str, Any]) -> None:
    """Writes `results/NAME.md` and `.json`, and prints both, the JSON as the last line."""
    RESULTS.mkdir(exist_ok=True)
    text = f"# {title}\n\n{body}\n"
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(text)
    print(json.dumps(result))
