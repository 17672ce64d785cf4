"""The chat at `/`: over HTTP, and in a browser, if there is a Chromium."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.server.chromium import Tab
from tests.server.live import KEY, HeldEngine, LiveServer

PARTS = re.compile(r'(?:src|href)="(static/[\w.]+)"')


@pytest.mark.parametrize("path", ["/", "/status"])
def test_a_page_needs_nothing_from_elsewhere(live: LiveServer, path: str) -> None:
    page = live.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"\s(on\w+|style)=|<script>|<style>", page.text)
    assert set(re.findall(r'(?:src|href)="(?!data:|static/)([^"]*)"', page.text)) <= {
        "status",
        "./",
    }
    for part in PARTS.findall(page.text):
        found = live.get(f"/{part}")
        kind = "text/css" if part.endswith("css") else "text/javascript"
        assert found.headers["content-type"] == f"{kind}; charset=utf-8"
        assert not re.search(r"https?://(?!www\.w3\.org)\w|innerHTML|eval\(", found.text)
    head = live.client.request("HEAD", path)
    assert (head.status_code, head.text) == (200, "")


@pytest.mark.parametrize("path", ["/", "/status"])
def test_a_page_may_run_its_own_scripts_alone(live: LiveServer, path: str) -> None:
    policy = live.get(path).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy
    assert "*" not in policy


@pytest.fixture
def clean(tab: Tab) -> Iterator[Tab]:
    """The tab, without what earlier tests left in the browser."""
    tab.complaints.clear()
    tab.show_in(width=1100, dark=False)
    yield tab
    origin = tab.run("origin")
    tab.run("localStorage.clear()")
    tab.open("about:blank")  # the page could write what it knows again
    tab.wait_for("location.href === 'about:blank'")
    tab.send("Storage.clearDataForOrigin", origin=origin, storageTypes="all")


def open_chat(tab: Tab, server: LiveServer, address: str = "") -> None:
    tab.open(f"{server.url}/{address}")
    tab.wait_for("document.querySelector('#model option').textContent !== '…'")


def say(tab: Tab, text: str) -> None:
    """Types a message and sends it."""
    tab.run(f"document.getElementById('text').value = {json.dumps(text)}")
    press(tab, "Enter")


def press(tab: Tab, key: str, **how: Any) -> None:
    event = json.dumps({"key": key, "bubbles": True, "cancelable": True} | how)
    tab.run(f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {event}))")


def wait_until_answered(tab: Tab, answers: int = 1) -> None:
    tab.wait_for(
        f"document.querySelectorAll('article.assistant').length === {answers} &&"
        "!document.getElementById('send').hidden"
    )


def shown(tab: Tab, selector: str = "article .body") -> list[str]:
    """The texts of the elements that a selector finds."""
    found = tab.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")
    return [str(text).strip() for text in found]


def click(tab: Tab, selector: str) -> None:
    tab.run(f"document.querySelector({json.dumps(selector)}).click()")


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def answer_with(tab: Tab, chunks: list[dict[str, Any]], end: Any = END, pause_ms: int = 0) -> None:
    """Makes the next answers consist of these chunks of a stream, and one that ends it."""
    chunks = [*chunks, end] if end else chunks
    tab.run(
        f"""
        window.asked = [];
        window.real ??= window.fetch;
        window.fetch = (path, options) => {{
          if (path !== "v1/chat/completions") return window.real(path, options);
          window.asked.push(JSON.parse(options.body));
          const send = async (to) => {{
            for (const chunk of {json.dumps(chunks)}) {{
              if (options.signal.aborted) return to.error(options.signal.reason);
              const data = JSON.stringify({{ choices: [{{ delta: {{}} }}], ...chunk }});
              to.enqueue(new TextEncoder().encode(`data: ${{data}}\\n\\n`));
              await new Promise((resolve) => setTimeout(resolve, {pause_ms}));
            }}
            to.close();
          }};
          return Promise.resolve(new Response(new ReadableStream({{ start: send }})));
        }};
        """
    )


def content(text: str, drafted: str = "") -> dict[str, Any]:
    """A chunk with a text that came from somewhere."""
    piece = {"text": text, "drafted": drafted}
    return {"choices": [{"delta": {"content": text}}], "pieces": [piece]}


def test_a_conversation_outlives_the_page(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    assert not clean.run("document.getElementById('empty').hidden")
    say(clean, "One **two** `three`.")
    wait_until_answered(clean)
    say(clean, "```python\nx = 1\n```")
    wait_until_answered(clean, 2)
    said = ["One two three.", "One two three.", "python\nCopy\nx = 1", "python\nCopy\nx = 1"]
    assert shown(clean) == said
    facts = r"20 tokens · [\d,]+ tokens/s · \d+\.\d\d tokens per pass"
    assert re.fullmatch(facts, shown(clean, ".foot .note:not(.gain)")[0])
    clean.wait_for("location.hash !== ''")
    url = clean.run("location.href")
    for page in ("about:blank", url):  # unlike a reload, it is under way when this returns
        clean.open(page)
    wait_until_answered(clean, 2)
    clean.wait_for("document.querySelector('#conversations .open')")
    assert shown(clean) == said
    assert shown(clean, "#conversations .open") == ["One **two** `three`."]
    assert clean.complaints == []


def test_a_message_is_edited_and_sent_again(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    say(clean, "first")
    wait_until_answered(clean)
    say(clean, "second")
    wait_until_answered(clean, 2)
    clean.run("[...document.querySelectorAll('.user .foot button')][0].click()")
    assert clean.run("document.getElementById('text').value") == "first"
    press(clean, "Escape")
    press(clean, "ArrowUp")
    assert clean.run("document.getElementById('text').value") == "second"
    say(clean, "third")
    wait_until_answered(clean, 2)
    assert shown(clean) == ["first", "first", "third", "third"]
    press(clean, "r", code="KeyR", altKey=True)
    wait_until_answered(clean, 2)
    assert shown(clean) == ["first", "first", "third", "third"]
    press(clean, "n", code="KeyN", altKey=True)
    clean.wait_for("!document.getElementById('empty').hidden")
    press(clean, "ArrowDown", code="ArrowDown", altKey=True)
    clean.wait_for("document.querySelectorAll('article').length === 4")


def test_an_answer_is_stopped_and_continued(
    clean: Tab, held: LiveServer, engine: HeldEngine
) -> None:
    open_chat(clean, held)
    engine.hold(after=30)
    say(clean, "go on")
    clean.wait_for("document.querySelector('.assistant .body').innerText.length > 5")
    clean.wait_for("!document.getElementById('stop').hidden")
    press(clean, "Escape")
    clean.wait_for("!document.getElementById('send').hidden")
    engine.release()
    held.settle()
    begun = clean.run("document.querySelector('.assistant .body').textContent")
    assert shown(clean, ".assistant .foot .note")[0] == "stopped"
    engine.hold(after=30)
    clean.run("[...document.querySelectorAll('.assistant button')].at(-1).click()")
    clean.wait_for(
        f"document.querySelector('.assistant .body').textContent.length > {len(begun)} + 5"
    )
    assert clean.run("document.querySelector('.assistant .body').textContent").startswith(begun)
    press(clean, "Escape")
    engine.release()
    clean.wait_for("!document.getElementById('send').hidden")


def test_two_tabs_know_of_each_other_and_lose_nothing(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    say(clean, "shared")
    wait_until_answered(clean)
    clean.wait_for("location.hash !== ''")
    with closing(clean.another()) as other:
        other.open(clean.run("location.href"))
        wait_until_answered(other)
        say(other, "from the other")
        wait_until_answered(other, 2)
        clean.wait_for("document.querySelectorAll('article').length === 4")
        # Both go on with the same conversation at once: the second keeps its own.
        for tab in (clean, other):
            answer_with(tab, [content("slow"), content(" and so on")])
        at = clean.run("Date.now()") + 1000  # however long a command takes
        for tab in (clean, other):
            tab.run(
                f"""document.getElementById("text").value = "at once";
                const key = {{ key: "Enter", bubbles: true, cancelable: true }};
                const send = () => document.activeElement.dispatchEvent(
                  new KeyboardEvent("keydown", key));
                setTimeout(send, {at} - Date.now()); null"""
            )
        for tab in (clean, other):
            wait_until_answered(tab, 3)
        clean.wait_for("document.querySelectorAll('#conversations li').length === 2")
    assert clean.run("location.hash") != ""


def test_an_answer_of_100_kb_is_streamed(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    prose = "".join(f"Line {i} of *many* words and `code`.\n\n" for i in range(1500))
    code = "```python\n" + "".join(f"value_{i} = {i}\n" for i in range(3000)) + "```\n"
    text = prose + code
    assert len(text) > 100_000
    size = 500
    answer_with(clean, [content(text[at : at + size]) for at in range(0, len(text), size)])
    say(clean, "go on")
    wait_until_answered(clean)
    assert clean.run("document.querySelectorAll('.assistant p').length") == 1500
    assert clean.run("document.querySelector('.assistant code:last-child').textContent") == "code"
    lines = clean.run("document.querySelector('pre code').textContent").split("\n")
    assert (lines[0], lines[-1]) == ("value_0 = 0", "value_2999 = 2999")
    assert clean.run("log.scrollTop + log.clientHeight >= log.scrollHeight - 80")


HOSTILE = """<script>window.hit = 1</script><img src=x onerror="window.hit = 2">
<iframe srcdoc="<script>parent.hit = 3</script>"></iframe>

[click](javascript:window.hit=4) [data](data:text/html,x) ![pixel](http://127.0.0.2/p.png)
[good](https://example.org/a_b_(c)) <https://example.org/> __proto__ [constructor](vbscript:x)

| a | b |
| --- | --- |
| <svg onload=alert(1)> | `c | d` | e |

"""
HOSTILE += "> " * 5000 + "deep\n" + "".join(f"{' ' * depth}- item\n" for depth in range(200))
HOSTILE += "*" * 20000 + "[" * 20000 + "`" * 9999


def test_hostile_text_stays_text(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    answer_with(clean, [content(HOSTILE[at : at + 400]) for at in range(0, len(HOSTILE), 400)])
    say(clean, HOSTILE[:500])
    wait_until_answered(clean)
    body = "document.querySelector('.assistant .body')"
    kinds = "script, img, iframe, svg, object, embed, style, link, form, [onload], [onerror]"
    assert clean.run(f"{body}.querySelectorAll({json.dumps(kinds)}).length") == 0
    links = clean.run(f"[...{body}.querySelectorAll('a')].map((a) => [a.href, a.rel, a.target])")
    safe = ["noopener noreferrer", "_blank"]
    assert links == [
        ["http://127.0.0.2/p.png", *safe],
        ["https://example.org/a_b_(c)", *safe],
        ["https://example.org/", *safe],
    ]
    assert clean.run("window.hit") is None
    assert "<script>window.hit = 1</script>" in clean.run(f"{body}.textContent")
    assert "[click](javascript:window.hit=4)" in clean.run(f"{body}.textContent")
    assert clean.complaints == []
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        clean.run("document.body.innerHTML = 'x'")


def test_markdown_becomes_elements(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    text = (
        "# Head\n\nSome **bold *and italic*** in\na_b_c 2 * 3 * 4 \\*no\\*.\n\n"
        "1. one\n   - inner\n\n     more\n2. two\n\n> quoted\n> `x`\n\n---\n\n"
        "| a | b |\n|--|--|\n| 1 | ~~2~~ |\n\n~~~js\nlet a;"
    )
    answer_with(clean, [content(character) for character in text])
    say(clean, "go on")
    wait_until_answered(clean)
    tree = """
        (function tree(node) {
          return node.nodeType === 3 ? node.data : node.tagName === "FIGCAPTION" ? "" :
            `<${node.tagName.toLowerCase()}>${[...node.childNodes].map(tree).join("")}</>`;
        })(document.querySelector(".assistant .body"))
    """
    assert clean.run(tree) == (
        "<div><h1>Head</><p>Some <strong>bold <em>and italic</></> in\na_b_c 2 * 3 * 4 *no*.</>"
        "<ol><li><p>one</><ul><li><p>inner</><p>more</></></></><li><p>two</></></>"
        "<blockquote><p>quoted\n<code>x</></></><hr></>"
        "<div><table><tr><th>a</><th>b</></><tr><td>1</><td><del>2</></></></></>"
        "<figure><pre><code>let a;</></></></>"
    )


def test_accepted_drafts_are_coloured_on_a_switch(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    drafts = [("Say **", ""), ("one two", "copies"), ("** and\n\n```\nx", ""), (" = 1\n", "head")]
    answer_with(clean, [content(text, drafted) for text, drafted in drafts])
    say(clean, "go on")
    wait_until_answered(clean)
    marks = "[...document.querySelectorAll('.body mark')].map((m) => [m.textContent, m.className])"
    assert clean.run(marks) == []
    press(clean, "d", code="KeyD", altKey=True)
    assert clean.run(marks) == [["one two", "copies"], [" = 1", "head"]]
    open_chat(clean, live)
    assert clean.run("document.getElementById('drafts').ariaPressed") == "true"


def test_what_drafted_a_token_is_told_on_request(live: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "abab" * 20}], "max_tokens": 24}
    body |= {"temperature": 0, "stream": True}
    *chunks, _ = live.events("/v1/chat/completions", body | {"show_drafts": True})
    pieces = [piece for chunk in chunks for piece in chunk.get("pieces", ())]
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert "".join(piece["text"] for piece in pieces) == said
    drafted = sum(piece["drafted"] != "" for piece in pieces)
    assert drafted <= chunks[-1]["timings"].get("draft_n_accepted", 0)
    assert chunks[-1]["timings"]["forward_n"] > 0
    *chunks, _ = live.events("/v1/chat/completions", body)
    assert not any("pieces" in chunk for chunk in chunks)


def test_thoughts_fold_and_settings_are_sent(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    clean.run(
        "for (const [name, value] of [['system', 'Be brief.'], ['top_k', 5], ['seed', 0]]) {"
        "  const field = document.querySelector(`#drawer [name=${name}]`);"
        "  field.value = value; field.dispatchEvent(new Event('change'));"
        "}"
    )
    thought = {"choices": [{"delta": {"reasoning_content": "Let me see."}}]}
    timings = {"predicted_n": 1200, "predicted_per_second": 99.6, "forward_n": 480, "speedup": 2.44}
    answer_with(clean, [thought, content("Yes.") | {"timings": timings}])
    say(clean, "Well?")
    wait_until_answered(clean)
    assert clean.run("document.querySelector('.assistant details').open") is False
    assert shown(clean, ".assistant summary") == ["Thoughts"]
    thoughts = clean.run("document.querySelector('.assistant details div').textContent")
    assert thoughts == "Let me see."
    assert shown(clean) == ["Well?", "Yes."]
    assert shown(clean, ".assistant .note") == [
        "1,200 tokens · 100 tokens/s · 2.50 tokens per pass",
        "2.4 times as fast as without drafts",
    ]
    asked = clean.run("window.asked[0]")
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Well?"},
    ]
    assert (asked["model"], asked["temperature"], asked["top_k"]) == ("tiny", 0, 5)
    assert asked["seed"] == 0


def test_errors_are_told(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    say(clean, "a" * 2000)
    wait_until_answered(clean)
    assert "context" in shown(clean, ".foot .bad")[0]


def test_a_server_that_cannot_answer_says_why_at_once(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    error = json.dumps({"error": {"message": "The server is shutting down."}})
    clean.run(f"window.fetch = async () => new Response({json.dumps(error)}, {{ status: 503 }})")
    say(clean, "go on")
    wait_until_answered(clean)
    assert shown(clean, ".foot .bad") == ["The server is shutting down."]
    assert shown(clean, ".assistant .foot button") == ["Copy", "Again"]  # nothing to continue


def test_it_tells_which_model_is_being_loaded(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    clean.run(
        """
        const { readable, writable } = new TransformStream();
        const writer = writable.getWriter();
        window.tell = (text) => { writer.write(new TextEncoder().encode(`${text}\\n\\n`)); };
        window.fetch = async () => new Response(readable);
        """
    )
    say(clean, "go on")
    clean.run("tell(': loading somebody/large')")
    clean.wait_for("document.querySelector('.assistant .note').innerText !== ''")
    assert shown(clean, ".assistant .note") == ["loading somebody/large"]
    clean.run(f"tell({json.dumps('data: ' + json.dumps(content('Yes.')))})")
    clean.wait_for("document.querySelector('.assistant .body').innerText === 'Yes.'")
    assert shown(clean, ".assistant .note") == []
    press(clean, "Escape")


def test_it_asks_for_the_key_and_keeps_it(clean: Tab, guarded: LiveServer) -> None:
    clean.open(f"{guarded.url}/")
    for key in ("неверно", KEY):
        clean.wait_for("document.getElementById('ask-key').open")
        clean.run(f"document.getElementById('key').value = {json.dumps(key)}")
        clean.run("document.querySelector('#ask-key form').requestSubmit()")
    clean.wait_for("document.querySelector('#model').options.length === 2")
    open_chat(clean, guarded)
    assert not clean.run("document.getElementById('ask-key').open")


@pytest.mark.parametrize("width", [320, 800, 1280])
def test_it_fits_every_window_in_both_themes(clean: Tab, parrot: LiveServer, width: int) -> None:
    clean.show_in(width=width, dark=True)
    open_chat(clean, parrot)
    say(clean, "word" * 50 + "\n```\n" + "code " * 50 + "\n```")
    wait_until_answered(clean)
    assert clean.run("document.documentElement.scrollWidth") == width
    assert clean.run("messages.getBoundingClientRect().right") <= width
    background = "getComputedStyle(document.body).backgroundColor"
    assert clean.run(background) == "rgb(20, 22, 23)"
    click(clean, "#theme")
    click(clean, "#theme")
    assert clean.run(background) == "rgb(251, 251, 250)"
    assert clean.run("localStorage.getItem('akunu-py-theme')") == "light"


def again(tab: Tab, server: LiveServer, address: str = "") -> None:
    """Loads the page anew; unlike a reload, that is under way when this returns."""
    tab.open("about:blank")
    open_chat(tab, server, address)


def test_later_turns_are_not_lost_by_an_edit_or_another_try(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    for number in (1, 2, 3):
        say(clean, f"turn {number}")
        wait_until_answered(clean, number)
    clean.run("[...document.querySelectorAll('.user .foot button')].at(-2).click()")
    click(clean, ".assistant .foot button:nth-child(2)")  # another try, in the middle of an edit
    wait_until_answered(clean)
    say(clean, "other")
    wait_until_answered(clean, 2)
    assert shown(clean) == ["turn 1", "turn 1", "other", "other"]
    clean.wait_for("document.querySelectorAll('#conversations li').length === 2")
    clean.run("document.getElementById('text').value = 'half a message'")
    clean.run("document.querySelectorAll('#conversations .open')[1].click()")
    clean.wait_for("document.querySelectorAll('article').length === 6")
    assert clean.run("document.getElementById('text').value") == "half a message"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_conversation_that_is_deleted_stays_deleted(
    clean: Tab, parrot: LiveServer, elsewhere: bool
) -> None:
    open_chat(clean, parrot)
    answer_with(clean, [content("word ")] * 2000, pause_ms=10)
    say(clean, "delete me")
    clean.wait_for("document.querySelector('#conversations .delete')")
    with closing(clean.another()) as other:
        open_chat(other, parrot)
        other.wait_for("document.querySelector('#conversations .delete')")
        deleting = "document.getElementById('forget').click()"
        (other if elsewhere else clean).run(f"{deleting}; {deleting}")
        for tab in (clean, other):
            tab.wait_for("document.querySelectorAll('#conversations li').length === 0")
            tab.wait_for("!document.getElementById('send').hidden")
    assert shown(clean) == []
    assert clean.run("location.hash") == ""
    again(clean, parrot)
    assert shown(clean, "#conversations .open") == []


def test_an_answer_without_an_end_can_be_continued(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    answer_with(clean, [content("half")], end=None)
    say(clean, "go on")
    wait_until_answered(clean)
    assert shown(clean, ".assistant .note") == ["stopped"]
    answer_with(clean, [content(" of it")] + [{}] * 2000, pause_ms=10)
    click(clean, ".assistant .foot button:nth-child(3)")
    clean.wait_for("document.querySelector('.assistant .body').innerText === 'half of it'")
    assert shown(clean, ".assistant .note") == []
    again(clean, parrot, clean.run("location.hash"))
    wait_until_answered(clean)
    assert shown(clean, ".assistant .foot button") == ["Copy", "Again", "Continue"]


def test_damaged_or_full_storage_leaves_a_chat(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    clean.run("localStorage.setItem('akunu-py-settings', '{'); 1")
    clean.run("localStorage.setItem('akunu-py-theme', 'purple'); 1")
    again(clean, parrot)
    clean.run(
        """
        const [put, set] = [IDBObjectStore.prototype.put, Storage.prototype.setItem];
        Storage.prototype.setItem = () => { throw new DOMException("It is full."); };
        IDBObjectStore.prototype.put = function (value) {
          if (value.messages.length === 2) throw new DOMException("It is full.");
          put.call(this, value);
        }; null
        """
    )
    click(clean, "#theme")
    assert clean.run("document.documentElement.dataset.theme") == ""
    assert "It is full." in shown(clean, "#state")[0]
    for number in (1, 2):  # the first of them is not kept
        say(clean, "hello")
        wait_until_answered(clean, number)
    clean.wait_for("document.querySelectorAll('#conversations li').length > 0")
    assert shown(clean, "#conversations .open") == ["hello"]


def test_a_message_waits_until_the_models_are_known(clean: Tab, parrot: LiveServer) -> None:
    late = "window.fetch = ((real) => (path, ...rest) => path === 'v1/models' && !window.ready ? "
    late += "Promise.reject(new TypeError()) : real(path, ...rest))(window.fetch)"
    script = clean.send("Page.addScriptToEvaluateOnNewDocument", source=late)
    clean.open(f"{parrot.url}/")
    clean.wait_for("document.getElementById('state').innerText === 'The server does not answer.'")
    clean.run("window.ready = true")
    say(clean, "early")
    wait_until_answered(clean)
    assert shown(clean) == ["early", "early"]
    clean.send("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_only_one_conversation_is_answered_at_a_time(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    answer_with(clean, [content("word ")] * 2000, pause_ms=10)
    say(clean, "one")
    clean.wait_for("document.querySelector('.assistant .body').innerText !== ''")
    press(clean, "n", code="KeyN", altKey=True)
    clean.wait_for("!document.getElementById('elsewhere').hidden")
    say(clean, "two")
    assert clean.run("document.getElementById('text').value") == "two"
    press(clean, "Escape")
    clean.wait_for("!document.getElementById('send').hidden")
    assert clean.run("document.getElementById('elsewhere').hidden")


def test_what_was_not_copied_is_told(clean: Tab, parrot: LiveServer) -> None:
    open_chat(clean, parrot)
    say(clean, "```\ncode\n```")
    wait_until_answered(clean)
    clean.run("navigator.clipboard.writeText = () => Promise.reject(new Error()); null")
    click(clean, "figcaption button")
    clean.wait_for("document.querySelector('figcaption button').innerText === 'Not allowed'")


def test_a_text_that_grows_becomes_what_it_becomes_at_once(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    text = "words\n**bold** and\n\n1. one\n\n2. two\n\na | b\n---|---\n1 | 2"
    same = clean.run(
        f"""(async () => {{
          const {{ render }} = await import("./static/markdown.js");
          const [text, grown, whole] = [{json.dumps(text)}, ...["div", "div"].map(
            (name) => document.createElement(name))];
          for (let at = 1; at <= text.length; at += 1) render(grown, text.slice(0, at), null);
          render(whole, text, null);
          const begun = performance.now();
          render(document.createElement("div"), "` " + "a".repeat(100000) + "`", null);
          return [grown.isEqualNode(whole), performance.now() - begun < 1000];
        }})()"""
    )
    assert same == [True, True]


def test_a_proxys_error_is_told(clean: Tab, live: LiveServer) -> None:
    open_chat(clean, live)
    clean.run("window.fetch = async () => new Response('<html>', { status: 502 }); null")
    say(clean, "go on")
    wait_until_answered(clean)
    assert shown(clean, ".foot .bad") == ["The server answered 502."]


def test_a_narrow_window(clean: Tab, parrot: LiveServer) -> None:
    clean.show_in(width=360, dark=False)
    open_chat(clean, parrot)
    say(clean, "| one | two |\n|---|---|\n| a longer cell with words | default |\n\nمرحبا (hello).")
    wait_until_answered(clean)
    click(clean, "#menu")
    assert clean.run("getComputedStyle(document.querySelector('.delete')).opacity") == "1"
    clean.run("document.elementFromPoint(350, 400).click()")
    assert "shown" not in clean.run("document.getElementById('side').className")
    cell = "[...document.querySelectorAll('.assistant td')].at(-1).getClientRects()[0]"
    assert clean.run(f"{cell}.height") < 70
    assert clean.run("getComputedStyle(document.querySelector('.assistant p')).unicodeBidi") == (
        "plaintext"
    )
