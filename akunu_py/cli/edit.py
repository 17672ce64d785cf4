"""`edit`: changes files as an instruction says, shows the changes, and asks before it writes."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TextIO

from akunu_py.cli.loading import load_engine, measure_costs_with_bar
from akunu_py.cli.render import (
    count,
    gain,
    palette_for,
    prefill_bar,
    printable,
    tell,
)
from akunu_py.cli.screen import read_bytes
from akunu_py.cli.settings import EditSettings
from akunu_py.edits.edit import Edit, Question, Wanted
from akunu_py.edits.growing import diff_of
from akunu_py.edits.text_file import TextFile, write_new
from akunu_py.errors import BackendError, EditError, InvalidRequestError
from akunu_py.text.chat import ChatTranscript

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.events import Event

_PIPE: Final = "-"
_WOULD_CHANGE, _NO_EDIT = 1, 4


def run(settings: EditSettings) -> int:
    """Edits one file after the other; the exit code is 4 if one of them could not be, and 1 if one
    would be changed that was only checked."""
    asks = not (settings.applies or settings.checks or settings.output or settings.as_json)
    is_pipe = settings.files == (_PIPE,)
    if asks and not is_pipe and not (sys.stdin and sys.stdin.isatty()):
        raise InvalidRequestError(
            "There is no terminal to ask on whether to apply the edit: add `applies`, `checks` or "
            "`as_json`."
        )
    files = [
        TextFile.of("standard input", read_bytes()) if is_pipe else TextFile.read(Path(name))
        for name in map(os.path.expanduser, settings.files)
    ]
    editor = _Editor(load_engine(settings.model), settings)
    codes = [editor.edit(file) for file in files]
    editor.close()
    return max(codes)


class _Editor:
    """Edits files with one model; see `EditSettings`."""

    def __init__(self, engine: "Engine", settings: EditSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._is_pipe = settings.files == (_PIPE,)
        text_out = self._is_pipe or settings.output == Path(_PIPE) or settings.as_json
        self._screen: TextIO = sys.stderr if text_out else sys.stdout
        self._palette = palette_for(self._screen)
        self._bar = prefill_bar(sys.stderr)
        self._found: list[dict[str, Any]] = []
        for notice in engine.notices:
            tell(notice)
        speculation = engine.speculation
        if settings.options.drafts and not speculation.why_impossible and sys.stderr.isatty():
            speculation.find_costs()
            if speculation.cost_curve is None:
                try:
                    speculation.trust(measure_costs_with_bar(engine))
                except BackendError as error:  # planned with what is known of similar machines
                    tell(str(error))

    def edit(self, file: TextFile) -> int:
        """Edits a file, if that is wanted; returns the exit code."""
        settings, code, why = self._settings, 0, None
        wanted = Wanted(
            settings.instruction, settings.lines, settings.function, settings.answer_format
        )
        tokenizer = self._engine.tokenizer
        limit = self._engine.context_limit
        edit = Edit(
            file.name,
            file.text,
            wanted,
            lambda message: len(ChatTranscript(tokenizer).prompt_for(message)),
            limit,
        )
        written = False
        try:
            self._show(edit)
            why = edit.doubt
            written = self._decide(file, edit)
        except EditError as error:
            why = str(error)
        finally:
            self._bar.close()
        stats = edit.stats
        if why:
            tell(f"{file.name}: {why}")
        changed = edit.new != edit.old
        if settings.checks:
            code = _WOULD_CHANGE if changed else 0
        elif why and not written:
            code = _NO_EDIT
        if self._is_pipe and not settings.as_json and not settings.checks:
            self._print_text(file, edit.new if written else edit.old)
        facts = [
            count(stats.generated_tokens, "token"),
            f"{stats.prefill_s + stats.decode_s:.1f} s",
        ]
        tell(" · ".join(filter(None, (*facts, gain(stats)))))
        self._found.append(
            {
                "file": file.name,
                "changed": changed,
                "written": written,
                "why": why,
                "diff": diff_of(edit.old, edit.new, file.name),
                "speedup": stats.speedup,
                "stats": stats.as_dict(),
            }
        )
        return code

    def close(self) -> None:
        if self._settings.as_json:
            print(json.dumps({"model": self._engine.model.name, "files": self._found}))
        self._engine.save_prompts(closing=True)

    def _ask(self, question: Question) -> Generator["Event", None, None]:
        tokenizer, options = self._engine.tokenizer, self._settings.options
        limits = [options.max_tokens, None if tokenizer.reasoning else question.max_tokens]
        options = replace(
            options,
            max_tokens=min((it for it in limits if it is not None), default=None),
            references=question.references,
            reports_progress=True,
            reasoning=tokenizer.reasoning,
        )
        prompt = ChatTranscript(tokenizer).prompt_for(question.message)
        with closing(self._engine.stream(prompt, options)) as events:
            for event in events:
                if event.prompt_done is not None:
                    self._bar(event.prompt_done, event.stats.prompt_tokens)
                    continue
                self._bar.close()
                yield event

    def _show(self, edit: Edit) -> None:
        """Asks, and shows the diff: as it grows on a terminal, else when it is complete."""
        live = self._screen.isatty()
        if live and len(self._settings.files) > 1:
            self._write(f"{edit.name}\n", self._palette.dim)
        for line in edit.answer(self._ask):
            if live:
                styles = {
                    "+": self._palette.added,
                    "-": self._palette.error,
                    "@": self._palette.dim,
                }
                self._write(f"{line}\n", styles.get(line[0], ""))
        if not live and not self._settings.as_json and self._screen is sys.stdout:
            self._write(diff_of(edit.old, edit.new, edit.name))

    def _write(self, text: str, style: str = "") -> None:
        shown = printable(text) if self._screen.isatty() else text
        self._screen.write(self._palette.paint(style, shown))
        self._screen.flush()

    def _decide(self, file: TextFile, edit: Edit) -> bool:
        """Writes the edit where and if that is wanted; whether it did."""
        settings = self._settings
        if edit.new == edit.old or settings.checks:
            return False
        asks = not (settings.applies or settings.output or settings.as_json or self._is_pipe)
        if asks:
            if not self._agrees(edit):
                edit.doubt = None
                return False
        elif edit.doubt:
            return False
        if settings.output:
            if settings.output == Path(_PIPE):
                self._print_text(file, edit.new)
            else:
                write_new(settings.output, file.encode(edit.new))
        elif not self._is_pipe and (asks or settings.applies):
            file.write(edit.new, backup=settings.backup)
        return True

    def _agrees(self, edit: Edit) -> bool:
        """Asks until the user says yes or no; `e` opens the new text in an editor first."""
        while True:
            if edit.doubt:
                tell(edit.doubt)
            question = "apply anyway? [y/n/e] " if edit.doubt else "apply? [y/n/e] "
            sys.stderr.write(question)
            sys.stderr.flush()
            said = sys.stdin.readline()
            word = said.strip().lower()
            if not said or word in ("n", "no"):
                return False
            if word in ("y", "yes"):
                return True
            if word == "e":
                edit.new, edit.doubt = _in_editor(edit), None
                self._write(diff_of(edit.old, edit.new, edit.name))

    def _print_text(self, file: TextFile, text: str) -> None:
        sys.stdout.buffer.write(file.encode(text))
        sys.stdout.flush()


def _in_editor(edit: Edit) -> str:
    """The new text after the user has changed it."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with TemporaryDirectory() as folder:
        path = Path(folder) / Path(edit.name).name
        path.write_text(edit.new, encoding="utf-8", newline="")
        try:
            subprocess.run([*shlex.split(command), str(path)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            tell(f"{command} failed ({error}); the edit is as it was.")
        return TextFile.read(path).text
