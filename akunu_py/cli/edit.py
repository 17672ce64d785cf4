"""`edit`: changes files as instructed, shows the changes, and asks before it writes."""

import json
import os
import shlex
import subprocess
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from akunu_py.cli.loading import check_ability, load_engine, measure_costs_with_bar
from akunu_py.cli.render import count, gain, palette_for, prefill_bar, printable, tell
from akunu_py.cli.screen import read_bytes
from akunu_py.cli.settings import EditSettings
from akunu_py.edits.edit import Edit, Question, Wanted, edit_of, request_for
from akunu_py.edits.growing import diff_of
from akunu_py.edits.shown import UNSURE, is_unsure
from akunu_py.edits.text_file import TextFile, check_output
from akunu_py.errors import BackendError, EditError, InvalidRequestError
from akunu_py.option_words import file_path
from akunu_py.rounds import Stats

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.events import Event

_PIPE: Final = "-"
_WOULD_CHANGE, _NO_EDIT = 1, 4


def run(settings: EditSettings) -> int:
    """Edits one file after another. The exit code is 4 if one could not be edited or is doubtful,
    else 1 if one was only checked and would change."""
    editor = _Editor(settings)
    if editor.asks and not (sys.stdin and sys.stdin.isatty()):
        raise InvalidRequestError(
            "There is no terminal to ask whether to apply the edit: add --yes, --check or --json."
        )
    if settings.output and str(settings.output) != _PIPE:
        check_output(settings.output)
    files, found = _read_all(settings.files)
    if not files:
        raise InvalidRequestError("There is no text to edit.")
    check_ability(settings.model)
    engine = load_engine(settings.model)
    for notice in engine.notices:
        tell(notice)
    _measure_costs(engine, settings)
    try:
        for file in files:
            found.append(editor.edit(engine, file))
    finally:  # an error or Ctrl-C does not undo what was written
        if settings.as_json and found:
            print(json.dumps({"model": engine.model.name, "files": found}))
    engine.save_prompts(closing=True)
    if any(one["why"] is not None for one in found):
        return _NO_EDIT
    return _WOULD_CHANGE * (settings.checks and any(one["changed"] for one in found))


def _read_all(names: Sequence[str]) -> tuple[list[TextFile], list[dict[str, Any]]]:
    """The files to edit, without empty ones, and what `--json` prints about unreadable ones. Raises
    an `InvalidRequestError` if the only file is unreadable."""
    files, unreadable = list[TextFile](), list[dict[str, Any]]()
    for name in names:
        try:
            file = (
                TextFile.of("standard input", read_bytes())
                if name == _PIPE
                else TextFile.read(file_path(name))
            )
        except InvalidRequestError as error:
            if len(names) == 1:
                raise
            tell(str(error))
            unreadable.append(_outcome(name, why=str(error)))
            continue
        if file.text.strip():
            files.append(file)
        else:
            tell(f"{file.name} is empty; it was skipped.")
    return files, unreadable


def _outcome(
    name: str,
    old: str = "",
    new: str = "",
    *,
    why: str | None,
    written: bool = False,
    stats: Stats | None = None,
) -> dict[str, Any]:
    """What `--json` prints about a file; `why` says what is wrong if it was left unchanged."""
    stats = stats or Stats()
    return {
        "file": name,
        "changed": new != old,
        "written": written,
        "why": why,
        "diff": diff_of(old, new, name),
        "speedup": stats.speedup,
        "stats": stats.as_dict(),
    }


def _measure_costs(engine: "Engine", settings: EditSettings) -> None:
    """Measures for a few seconds what forward passes cost, if that is unknown and the user sees why
    it takes time. Only then is the speedup of drafts known."""
    costs = engine.costs
    if not settings.options.drafts or engine.model.why_no_drafts or not sys.stderr.isatty():
        return
    costs.alone()
    if costs.measured is None:
        with suppress(BackendError):  # on a busy machine, whose speedup then stays unknown
            costs.trust(measure_costs_with_bar(engine))


class _Editor:
    def __init__(self, settings: EditSettings) -> None:
        self._settings = settings
        self._prints = settings.as_json or (
            not settings.checks and _PIPE in (*settings.files, str(settings.output))
        )
        self.asks = not (settings.applies or settings.checks or settings.output or self._prints)
        self._screen = sys.stderr if self._prints else sys.stdout
        self._bar = prefill_bar(sys.stderr)

    def edit(self, engine: "Engine", file: TextFile) -> dict[str, Any]:
        """Edits a file; returns what `--json` prints about it."""
        settings, edit, stats = self._settings, None, Stats()
        self._log_probability = 0.0  # of the bundled model's answers
        new, why, written = file.text, None, False
        try:
            wanted = Wanted(
                settings.instruction, settings.lines, settings.function, settings.answer_format
            )
            edit = edit_of(file, wanted, engine.tokenizer, engine.context_limit)
            stats = edit.stats
            self._show(engine, edit)
            if edit.doubt is None and is_unsure(self._log_probability):
                edit.doubt = UNSURE
            new, why = edit.new, edit.doubt
            if settings.checks and new == file.text:
                why = None  # it is as it should be
            if self.asks and new != file.text:
                new, why = self._agreed(edit), None
            if new != file.text and why is None and not settings.checks:
                written = self._write(file, new)
        except (EditError, InvalidRequestError) as error:
            if isinstance(error, InvalidRequestError) and len(settings.files) == 1:
                raise
            why = str(error)
        finally:
            self._bar.close()
        if why:
            tell(f"{file.name} was left unchanged. {why}")
        elif settings.checks and new == file.text:
            tell(f"{file.name} would not change.")
        if self._prints and not (settings.as_json or written):
            self._print(file, file.text)
        facts = count(stats.generated_tokens, "token"), f"{stats.prefill_s + stats.decode_s:.1f} s"
        tell(" · ".join(filter(None, (*facts, gain(stats)))))
        return _outcome(file.name, file.text, new, why=why, written=written, stats=stats)

    def _show(self, engine: "Engine", edit: Edit) -> None:
        palette, live = palette_for(self._screen), self._screen.isatty()
        styles = {"+": palette.added, "-": palette.error, "@": palette.dim}
        if live:
            print(palette.paint(palette.dim, printable(edit.name)), file=self._screen)
        for line in edit.answer(lambda question: self._ask(engine, question)):
            if live and line is not None:
                shown = palette.paint(styles.get(line[0], ""), printable(line))
                print(shown, file=self._screen, flush=True)
        if not live and not self._prints:
            self._screen.write(diff_of(edit.old, edit.new, edit.name))

    def _ask(self, engine: "Engine", question: Question) -> Generator["Event", None, None]:
        scored = 0 if self._settings.model.is_bundled else None
        options = replace(self._settings.options, reports_progress=True, logprobs=scored)
        with closing(engine.stream(*request_for(engine.tokenizer, question, options))) as events:
            for event in events:
                if event.prompt_done is not None:
                    self._bar(event.prompt_done, event.stats.prompt_tokens)
                    continue
                self._bar.close()
                self._log_probability += event.log_probability
                yield event

    def _agreed(self, edit: Edit) -> str:
        """The text that the user wants: the new one, perhaps changed in an editor, or the old."""
        new, doubt = edit.new, edit.doubt
        while True:
            if doubt:
                tell(doubt)
            _discard_typed()
            print(f"apply{' anyway' * bool(doubt)}? [y/n/e] ", end="", file=sys.stderr, flush=True)
            said = sys.stdin.readline()
            word = said.strip().lower()
            if word in ("y", "yes"):
                return new
            if not said or word in ("n", "no"):
                return edit.old
            if word == "e":
                try:
                    new, doubt = _in_editor(edit.name, new), None
                except EditError as error:
                    tell(str(error))
                else:
                    print(printable(diff_of(edit.old, new, edit.name)), end="")

    def _write(self, file: TextFile, new: str) -> bool:
        output = self._settings.output
        if output and str(output) != _PIPE:
            file.write_to(output, new)
        elif self._prints and not self._settings.as_json:
            self._print(file, new)
        elif self.asks or self._settings.applies:
            file.write(new, backup=self._settings.backup)
        else:
            return False
        return True

    def _print(self, file: TextFile, text: str) -> None:
        sys.stdout.buffer.write(file.encode(text))
        sys.stdout.flush()


def _discard_typed() -> None:
    """Discards what was typed before the question could be read."""
    with suppress(OSError, ValueError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _in_editor(name: str, text: str) -> str:
    """A text after the user has changed it; raises an `EditError` if the editor fails."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_text(text, encoding="utf-8", newline="")
        try:
            subprocess.run([*shlex.split(command), str(path)], check=True)
            return TextFile.read(path).text
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise EditError(f"{command} failed: {str(error).rstrip('.')}.") from None
