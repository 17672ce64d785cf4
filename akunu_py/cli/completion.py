"""SlashCompleter: completes slash commands and what may follow them."""

from collections.abc import Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from akunu_py.cli.slash_commands import COMMANDS


class SlashCompleter(Completer):
    """Offers commands once a line begins with a slash, and nothing anywhere else."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        name, space, rest = line.partition(" ")
        if not space:
            for command in COMMANDS:
                if command.name.startswith(name):
                    yield Completion(command.name, -len(name), display_meta=command.summary)
            return
        for command in COMMANDS:
            if command.name != name:
                continue
            if command.takes_file:
                yield from self._paths.get_completions(Document(rest), event)
            word = rest.rpartition(" ")[2]
            for choice in command.choices:
                if choice.startswith(word):
                    yield Completion(choice, -len(word))
