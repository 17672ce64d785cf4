"""Edits over HTTP: `/v1/edits`, in the form that OpenAI's had, and `/v1/apply`, which merges an
update with elisions into a text, with the fields of Relace's clients, or in the chats of Morph's.

The model is asked as `edit` asks it. What is wrong with an answer is its `doubt`; the text of one
that is no edit is the text as it was. A stream has the text or a diff as it grows.
"""

import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import PurePath
from time import time
from typing import Any, Final

from starlette.responses import Response

from akunu_py.edits.edit import Edit, Question, Said, Wanted, edit_of, request_for
from akunu_py.edits.growing import diff_of
from akunu_py.edits.reading import FORMATS
from akunu_py.edits.text_file import TextFile
from akunu_py.errors import EditError
from akunu_py.events import Completion, Event
from akunu_py.server.body import MAX_PATH, Body
from akunu_py.server.conversation import some_messages
from akunu_py.server.dialect import OPENAI, read_options
from akunu_py.server.errors import ApiError
from akunu_py.server.openai import DONE, error_body, figures_of
from akunu_py.server.service import Job, Service
from akunu_py.server.wire import Endpoint, JobAnswer, Reply, finish_word, new_id, sse

_DIALECT: Final = replace(OPENAI, temperature=0.0)
_LONGEST_INSTRUCTION: Final = 1 << 16
_MOST_PARTS: Final = 16
_MORPH: Final = re.compile(
    r"(?=.*</update>\Z)(?>(?:<instructions?>(.*?)</instructions?>\s*)?<code>)"
    r"(.*)</code>\s*<update>(.*)</update>",
    re.DOTALL,
)
"""How Morph's clients write a message; spaces around the tags' contents are part of them. Without
its end, and `(?>`, each place where it might go on would be tried in turn."""


def _edit(service: Service, body: Body) -> Response:
    body.require("input", "instruction")
    wanted = _wanted(body, body.text("instruction", default=""))
    return _respond(service, body, body.text("input", default=""), wanted)


def _apply(service: Service, body: Body) -> Response:
    texts = (
        body.text("original", "initial_code", "initialCode", default=""),
        body.text("update", "edit_snippet", "editSnippet", default=""),
    )
    for name, text in zip(("original", "update"), texts, strict=True):
        if not text.strip():
            body.refuse(name, "is missing, or empty")
    instruction = body.text("instruction", "instructions", default="")
    return _respond(service, body, texts[0], _wanted(body, instruction, texts[1]), kind="apply")


def _apply_chat(service: Service, body: Body) -> Response:
    last = some_messages(body)[-1]
    found = _MORPH.fullmatch(last.joined("content").strip())
    if found is None:
        last.refuse("content", "must be <instruction>, which may be left out, <code> and <update>")
    instruction, original, update = (it or "" for it in found.groups())
    wanted = _wanted(body, instruction, update)
    return _respond(service, body, original, wanted, kind="chat")


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/edits", _edit, is_slow=True),
    Endpoint("POST", "/v1/apply", _apply, is_slow=True),
    Endpoint("POST", "/v1/code/apply", _apply, is_slow=True),
    Endpoint("POST", "/v1/apply/chat/completions", _apply_chat, is_slow=True),
)


def _wanted(body: Body, instruction: str, update: str = "") -> Wanted:
    if len(instruction) > _LONGEST_INSTRUCTION:
        body.refuse("instruction", f"is longer than {_LONGEST_INSTRUCTION} characters")
    answer_format = body.text("answer_format", default="auto")
    if answer_format not in ("auto", *FORMATS):
        body.refuse("answer_format", f"must be auto, {', '.join(FORMATS)}")
    lines = [one for one in body.values("lines", most=2) if type(one) is int]
    if body.has("lines") and len(lines) != 2:
        body.refuse("lines", "must be the numbers of the first and the last line")
    span = (lines[0], lines[1]) if lines else None
    function = body.text("function", default=None, longest=MAX_PATH)
    if span and function is not None:
        body.refuse("function", "does not go with `lines`; name one of them")
    return Wanted(instruction, span, function, answer_format, update)


def _respond(
    service: Service, body: Body, text: str, wanted: Wanted, *, kind: str = "edit"
) -> Response:
    engine, tokenizer = service.engine, service.engine.tokenizer
    body.integer("n", default=1, least=1, most=1)
    path, language = body.text("path", default=""), body.text("language", default="").lower()
    if not path.isprintable():
        body.refuse("path", "must be printable")
    if not re.fullmatch(r"[\w+#-]*", language):
        body.refuse("language", "must be a word")
    name = PurePath(PurePath(path).name or "input")
    if language:
        name = name.with_suffix({"python": ".py"}.get(language, f".{language}"))
    file = TextFile.of(str(name), text.encode())
    options = replace(read_options(service, body, _DIALECT), reports_progress=False)
    limit = engine.context_limit
    edit = edit_of(file, wanted, tokenizer, limit, most_parts=_MOST_PARTS + 1)
    if len(edit.questions) > _MOST_PARTS:
        body.refuse("instruction", f"concerns more than {_MOST_PARTS} parts of a long text")
    jobs = [Job(*request_for(tokenizer, one, options), is_chat=True) for one in edit.questions]
    reply = _Reply(service.model_name, body, edit, file, kind)
    return JobAnswer(service, jobs, reply, streams=body.flag("stream", default=False))


class _Reply(Reply):
    """Reads the answers to the questions of an edit, whose new text, or diff to that, becomes a
    `text` or the message of a chat."""

    is_slow = True

    def __init__(self, model: str, body: Body, edit: Edit, file: TextFile, kind: str) -> None:
        form = body.text("format", default="whole")
        if form not in ("whole", "diff"):
            body.refuse("format", "must be whole or diff")
        self._edit, self._file, self._kind = edit, file, kind
        self.kept_bytes = len(file.content) + len(file.text)
        self._path = body.text("path", default="") or file.name
        self._shows_diff = form == "diff"
        self._said = [deque[Said]() for _ in edit.questions]
        self._done: dict[int, Said] = {}
        self._pieces = edit.answer(self._ask, as_text=not self._shows_diff)
        self._sent = list[str]()
        breaks, returns = file.content.count(b"\n"), file.content.count(b"\r\n")
        self._line_end = "\r\n" if returns else "\n"
        # Which lines keep another line end is known at the end.
        self._waits = not self._shows_diff and (bool(file.mark) or 0 < returns < breaks)
        name = "chat.completion" if kind == "chat" else "edit"
        streams = kind == "chat" and body.flag("stream", default=False)
        self._head = {
            "id": new_id("edit-"),
            "object": f"{name}.chunk" if streams else name,
            "created": int(time()),
            "model": model,
        }

    def feed(self, index: int, event: Event) -> Iterator[bytes]:
        for piece in filter(None, self._read(index, event)):
            if self._waits:
                continue
            text = f"{piece}\n" if self._shows_diff else piece.replace("\n", self._line_end)
            self._sent.append(text)
            yield sse(self._head | {"choices": [self._choice("delta", text, None)]})
        if len(self._done) == len(self._said):
            new, sent = "" if self._shows_diff else self._new, "".join(self._sent)
            rest = new.removeprefix(sent) if new.startswith(sent) else ""
            end = self._choice("delta", rest, self._finish) | {"doubt": self._edit.doubt}
            end |= {"diff": self._diff} if self._shows_diff else {}
            yield sse(self._head | {"choices": [end]} | self._figures)
            yield DONE

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        for index, completion in enumerate(completions):
            deque(self._read(index, completion), maxlen=0)
        text = self._diff if self._shows_diff else self._new
        choice = self._choice("message", text, self._finish) | {"doubt": self._edit.doubt}
        # Who reads this field does not read doubts.
        is_merged = self._kind == "apply" and self._edit.doubt is None
        merged = {"mergedCode": self._new} if is_merged else {}
        return self._head | {"choices": [choice]} | merged | self._figures

    def report(self, error: ApiError) -> bytes:
        return sse(error_body(error))

    def _read(self, index: int, said: Said) -> Iterator[str]:
        """The pieces that are certain with the next event of an answer, or with all of it."""
        self._said[index].append(said)
        if said.finish_reason is not None:
            self._done[index] = said
        try:
            yield from takewhile(lambda piece: piece is not None, self._pieces)
        except EditError as error:
            self._edit.doubt = str(error)

    def _ask(self, question: Question) -> Generator[Said | None, None, None]:
        index = self._edit.questions.index(question)
        while True:
            said = self._said[index].popleft() if self._said[index] else None
            yield said
            if said is not None and said.finish_reason is not None:
                return

    def _choice(self, name: str, text: str, finish: str | None) -> dict[str, Any]:
        is_chat = self._kind == "chat"
        shown = {name: {"role": "assistant", "content": text}} if is_chat else {"text": text}
        return {"index": 0, **shown, "finish_reason": finish}

    @property
    def _new(self) -> str:
        return self._file.encode(self._edit.new).decode()

    @property
    def _diff(self) -> str:
        return diff_of(self._file.content.decode(), self._new, self._path)

    @property
    def _finish(self) -> str:
        words = {finish_word(said.finish_reason) for said in self._done.values()}
        return "length" if "length" in words else "stop"

    @property
    def _figures(self) -> dict[str, Any]:
        return figures_of({index: said.stats for index, said in self._done.items()}, 1)
