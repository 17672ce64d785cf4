"""What the bundled model answers to thirty first messages, printed into its card.

    python -m benchmarks.evaluate_model.first_messages [--model FOLDER]

The messages are those of `first_messages.txt`, on which the model was not trained; the answers are
greedy.
"""

import argparse
from pathlib import Path

import akunu_py
from akunu_py.options import Options

ROOT = Path(__file__).parents[2]
MESSAGES = Path(__file__).with_name("first_messages.txt")
CARD = ROOT / "models" / "ember" / "README.md"
BEGIN, END = "<!-- first messages -->\n", "<!-- end of first messages -->"
MAX_TOKENS = 200


def messages() -> dict[str, list[str]]:
    """The messages inside the training and outside."""
    found: dict[str, list[str]] = {}
    for line in MESSAGES.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
            found[kind] = []
        elif line and not line.startswith("# "):
            found[kind].append(line)
    return found


def transcript(folder: Path) -> str:
    """Every message with its answer, as Markdown."""
    engine = akunu_py.load(str(folder))
    parts = []
    for kind, lines in messages().items():
        parts.append(f"{len(lines)} {kind} its training:\n")
        shown = []
        for line in lines:
            said = [{"role": "user", "content": line}]
            answer = engine.generate(said, Options(max_tokens=MAX_TOKENS)).text
            shown.append("\n".join([f"> {line}", *answer.split("\n")]))
        text = "\n\n".join(shown)
        parts.append("".join(f"    {one}".rstrip() + "\n" for one in text.split("\n")))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "ember")
    parser.add_argument("--print", action="store_true", help="leave the card as it is")
    options = parser.parse_args()
    text = transcript(options.model)
    print(text)
    if not options.print:
        before, _, rest = CARD.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        CARD.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
