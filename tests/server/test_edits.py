"""`/v1/edits` and `/v1/apply`, with the bundled model."""

from collections.abc import Iterator
from typing import Any

import pytest

import akunu_py
from tests.server.live import LiveServer, serve

CODE = "def area(width, height):\n    return width * height\n"
RIGHT = CODE.replace("width", "w")
RENAME = "Rename `width` to `w`"
TAGS = "</instruction><code>" * 50_000


@pytest.fixture(scope="module")
def ember() -> Iterator[LiveServer]:
    with serve(akunu_py.load) as server:
        yield server


def edit(ember: LiveServer, **fields: Any) -> Any:
    body = {"input": CODE, "instruction": RENAME, "language": "python"} | fields
    return ember.ask("/v1/edits", body)["choices"][0]


def chunks(ember: LiveServer, **fields: Any) -> list[Any]:
    body = {"input": CODE, "instruction": RENAME, "path": "a.py"} | fields
    *found, done = ember.events("/v1/edits", body)
    assert done == "[DONE]"
    return found


def test_an_edit_has_openais_form(ember: LiveServer) -> None:
    answer = ember.ask("/v1/edits", {"input": CODE, "instruction": RENAME})
    assert answer["object"] == "edit"
    assert answer["choices"] == [
        {"index": 0, "text": RIGHT, "finish_reason": "stop", "doubt": None}
    ]
    assert answer["usage"]["completion_tokens"] > answer["timings"]["forward_n"]


def test_line_ends_stay(ember: LiveServer) -> None:
    crlf = CODE.replace("\n", "\r\n")
    assert edit(ember, input=crlf)["text"] == RIGHT.replace("\n", "\r\n")
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks(ember, input=crlf))
    assert text == RIGHT.replace("\n", "\r\n")


def test_a_stream_grows_line_by_line(ember: LiveServer) -> None:
    *parts, last = chunks(ember)
    assert len(parts) > 1
    assert "".join(part["choices"][0]["text"] for part in parts) == RIGHT
    assert last["choices"][0]["doubt"] is None
    assert last["timings"]["forward_n"] > 0


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (CODE.replace("\n", "\r\n", 1), {}),
        (f"\ufeff{CODE}", {}),
        (CODE, {"max_tokens": 8}),
        (CODE, {"instruction": "Translate it to Chinese"}),
    ],
)
def test_a_stream_has_the_same_text(ember: LiveServer, text: str, fields: dict[str, Any]) -> None:
    whole = edit(ember, input=text, **fields)["text"]
    parts = chunks(ember, input=text, **fields)
    assert "".join(part["choices"][0]["text"] for part in parts) == whole


def test_a_language_counts_whatever_the_path_is(ember: LiveServer) -> None:
    wrong = {"instruction": "Rename `width` to `1x`", "language": "python"}
    for path in ("", "script", "a.txt"):
        assert "no longer valid Python" in edit(ember, path=path, **wrong)["doubt"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_diff_on_request(ember: LiveServer, streams: bool) -> None:
    diff = "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n-def area(width, height):\n"
    if streams:
        *parts, last = chunks(ember, format="diff")
        said = "".join(part["choices"][0]["text"] for part in parts)
        assert said.startswith("@@ line 1 @@\n-def area(width, height):\n")
        assert last["choices"][0]["diff"].startswith(diff)
    else:
        assert edit(ember, format="diff", path="a.py")["text"].startswith(diff)


@pytest.mark.parametrize(
    ("fields", "finish", "doubt"),
    [
        ({"max_tokens": 8}, "length", "cut"),
        ({"instruction": "Translate it to Chinese"}, "stop", "without an edit"),
        ({"instruction": "Rename `none` to `nothing`"}, "stop", ""),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    ember: LiveServer, fields: dict[str, Any], finish: str, doubt: str
) -> None:
    found = edit(ember, **fields)
    assert (found["text"], found["finish_reason"]) == (CODE, finish)
    assert doubt in found["doubt"]
    last = chunks(ember, **fields)[-1]["choices"][0]
    assert (last["finish_reason"], last["doubt"]) == (finish, found["doubt"])


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/v1/edits", {"instruction": None}, "`instruction` is missing."),
        ("/v1/edits", {"input": " "}, "There is no text in input.py to edit."),
        ("/v1/edits", {"input": 1}, "`input` must be a string, not a number."),
        ("/v1/edits", {"format": "html"}, "`format` must be whole or diff."),
        ("/v1/edits", {"answer_format": "x"}, "`answer_format` must be auto, whole, blocks, diff."),
        (
            "/v1/edits",
            {"instruction": "a" * 65_537},
            "`instruction` is longer than 65536 characters.",
        ),
        ("/v1/edits", {"function": "a" * 4097}, "`function` is longer than 4096 characters."),
        ("/v1/edits", {"path": "a\0b"}, "`path` must be printable."),
        ("/v1/edits", {"language": "../x"}, "`language` must be a word."),
        ("/v1/edits", {"lines": [1]}, "`lines` must be the numbers of the first and the last"),
        ("/v1/edits", {"lines": [1, 2], "function": "area"}, "`function` does not go with `lines`"),
        ("/v1/edits", {"n": 2}, "`n` must be 1 or less, not 2."),
        ("/v1/edits", {"function": "g"}, "input.py has no function g; it has area."),
        ("/v1/edits", {"input": "x = 1\n" * 3000}, "The text is too long for the model's context"),
        ("/v1/apply", {"original": CODE}, "`update` is missing, or empty."),
        ("/v1/apply/chat/completions", {"messages": [{"role": "user", "content": "hi"}]},
         "`messages[0].content` must be"),
        ("/v1/apply/chat/completions",  # this took minutes
         {"messages": [{"role": "user", "content": "<code>" + "</code><update>" * 50_000}]},
         "`messages[0].content` must be"),
        ("/v1/apply/chat/completions",  # as did this
         {"messages": [{"role": "user", "content": f"<instruction>{TAGS}</update>"}]},
         "`messages[0].content` must be"),
        ("/v1/edits", {"input": ("x = 1\n" * 40 + "\n") * 300, "instruction": "Rename `x` to `y`",
                       "language": "md"}, "`instruction` concerns more than 16 parts"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(
    ember: LiveServer, path: str, body: dict[str, Any], sentence: str
) -> None:
    if path == "/v1/edits":
        body = {"input": CODE, "instruction": "x", "language": "python"} | body
    answer = ember.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(sentence)


def test_an_update_is_merged_as_relaces_clients_ask(ember: LiveServer) -> None:
    kept = "def sides(box):\n    return box.sides\n\n\n"
    sketch = f"# ... existing code ...\n\n\n{RIGHT}"
    for names in (("original", "update"), ("initialCode", "editSnippet")):
        body = dict(zip(names, (kept + CODE, sketch), strict=True)) | {"instruction": RENAME}
        answer = ember.ask("/v1/code/apply", body)
        assert answer["mergedCode"] == answer["choices"][0]["text"]
        assert answer["usage"]["total_tokens"] > 0
        assert answer["choices"][0]["text"] == kept + RIGHT
        assert answer["choices"][0]["doubt"] is None
    answer = ember.ask("/v1/code/apply", body | {"format": "diff"})
    assert answer["mergedCode"] == kept + RIGHT
    assert answer["choices"][0]["text"].startswith("--- input")


def test_relaces_clients_cannot_lose_an_update_in_silence(ember: LiveServer) -> None:
    body = {"original": "a = 1\nb = 2\n", "update": "# ... existing code ...\nb = 3"}
    body["language"] = "python"
    answer = ember.ask("/v1/apply", body)
    assert answer["choices"][0]["text"] == body["original"]
    assert answer["choices"][0]["doubt"] == "The model gave the text back unchanged."
    assert "mergedCode" not in answer


def test_clients_that_read_no_doubts_get_no_doubtful_merge(ember: LiveServer) -> None:
    body = {"original": "a = 1\nb = 2\n", "update": "b = 3\nc = f(9)"}  # too much for ember
    answer = ember.ask("/v1/apply", body)
    assert answer["choices"][0]["text"] != body["original"]
    assert answer["choices"][0]["doubt"].startswith("The answer ")
    assert "mergedCode" not in answer


def test_an_update_is_merged_as_morphs_clients_ask(ember: LiveServer) -> None:
    content = f"<instruction>{RENAME}</instruction>\n<code>{CODE}</code>\n<update>{RIGHT}</update>"
    body = {"model": "default", "messages": [{"role": "user", "content": content}]}
    answer = ember.ask("/v1/apply/chat/completions", body)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": RIGHT}
    assert answer["choices"][0]["doubt"] is None
    *parts, _ = ember.events("/v1/apply/chat/completions", body)
    assert parts[0]["object"] == "chat.completion.chunk"
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == RIGHT
