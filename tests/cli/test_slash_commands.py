"""What slash commands do to a conversation, and what they answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

import akunu_py
from akunu_py.cli.conversation import Conversation, Turn
from akunu_py.cli.slash_commands import (
    COMMANDS,
    LeaveChatError,
    describe_options,
    run_command,
)
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.options import Options
from akunu_py.rounds import Finish
from akunu_py.worker import EngineWorker
from tests.cli.fakes import ENDLESS, FakeEngine

F = "def f(x):\n    return x\n"
G = "def g(x):\n    # remove one\n    return x - 1\n"


@pytest.fixture
def conversation(start: Callable[[FakeEngine], EngineWorker]) -> Conversation:
    return Conversation(start(FakeEngine("Hi.")), Options())


def say(conversation: Conversation, line: str) -> str:
    reply = run_command(conversation, line)
    assert reply is not None
    if isinstance(reply, Turn):
        return "".join(event.text for event in reply)
    return reply


def ask(conversation: Conversation, question: str) -> None:
    list(conversation.ask(question))


@pytest.mark.parametrize("columns", [200, 80, 40])
def test_help_names_every_command(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = say(conversation, "/help")
    assert all(command.name in shown for command in COMMANDS)
    assert max(map(len, shown.splitlines())) <= min(columns, 80)
    assert columns < 80 or len(shown.splitlines()) < 24  # a terminal's


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("/max-tokens 9", Options(max_tokens=9)),
        ("/length 9", Options(max_tokens=9)),
        ("/max-tokens -1", Options(max_tokens=None)),
        ("/num-draft-tokens 8", Options(num_draft_tokens=8)),
        ("/drafter none", Options(drafter="none")),
        ("/speculate off", Options(drafter="none")),
        ("/speculative off", Options(drafter="none")),
        ("/speculate on", Options()),
        ("/temp 0.5", Options(temperature=0.5)),
        ("/top-p 0.9", Options(top_p=0.9)),
        ("/top-k 40", Options(top_k=40)),
        ("/min-p 0.1", Options(min_p=0.1)),
        ("/seed 7", Options(seed=7)),
        ("/seed none", Options()),
        ("/repetition-penalty 1.1", Options(repetition_penalty=1.1)),
        ("/top-k off", Options()),
        ("/exact on", Options(exact=True)),
        ("/max-tokens", Options()),
        ("/num-draft-tokens", Options()),
    ],
)
def test_settings(conversation: Conversation, line: str, options: Options) -> None:
    assert say(conversation, line) == describe_options(options)
    assert conversation.options == options


@pytest.mark.parametrize(
    ("before", "after"),
    [("/drafter ngram", Options(drafter="ngram")), ("/num-draft-tokens 0", Options())],
)
def test_speculation_is_turned_on_with_the_same_drafter_and_some_draft_tokens(
    conversation: Conversation, before: str, after: Options
) -> None:
    say(conversation, before)
    say(conversation, "/speculate on")
    assert conversation.options == after


def test_showing_drafts(conversation: Conversation) -> None:
    say(conversation, "/show-drafts on")
    assert conversation.show_drafts
    assert "not marked" in say(conversation, "/show-drafts off")


def test_system_message(conversation: Conversation) -> None:
    assert say(conversation, "/system") == "There is no system message."
    say(conversation, "/system Be brief, please.")
    assert say(conversation, "/system") == "Be brief, please."
    say(conversation, "/system none")
    assert conversation.system is None


def test_saving_resetting_and_loading(conversation: Conversation, tmp_path: Path) -> None:
    ask(conversation, "Hello?")
    say(conversation, "/max-tokens 7")
    assert say(conversation, "/save ~/my talk.json").startswith("Saved 2 messages")
    said = list(conversation.messages)
    say(conversation, "/reset")
    assert list(conversation.messages) == []
    conversation.options = Options()
    assert say(conversation, f"/load {tmp_path}/my talk.json").startswith("Loaded 2 messages")
    assert list(conversation.messages) == said
    assert conversation.options.max_tokens == 7
    ask(conversation, "And?")
    assert len(conversation.messages) == 4


def test_stats_of_all_turns(conversation: Conversation) -> None:
    assert say(conversation, "/stats") == "There is no answer yet."
    ask(conversation, "Hello?")
    ask(conversation, "And?")
    shown = say(conversation, "/stats")
    assert shown.startswith("2 answers: 5 tokens · 1.50 tokens per pass")
    assert "of 1,000 tokens in use" in shown


def test_retry_answers_again(conversation: Conversation) -> None:
    ask(conversation, "Hello?")
    assert say(conversation, "/retry") == "OK"


def test_the_drafter_model_needs_a_draft_model(tiny_model_dir: Path) -> None:
    worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)))
    conversation = Conversation(worker, Options())
    with pytest.raises(InvalidRequestError, match="No draft model"):
        say(conversation, "/drafter model")
    assert conversation.options == Options()
    assert worker.close(60)


@pytest.mark.parametrize("line", ["/quit", "/exit", "/bye"])
def test_leaving(conversation: Conversation, line: str) -> None:
    with pytest.raises(LeaveChatError):
        say(conversation, line)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/", "/help lists them"),
        ("/rest", "did you mean /reset?"),
        ("/usr/bin is what?", "type a space before it"),
        ("/save", "The name of a file is missing: /save FILE"),
        ("/load", "/load FILE"),
        ("/load /nowhere/talk.json", "cannot be read"),
        ("/load ~nosuchuser/talk.json", "~nosuchuser/talk.json cannot be read: No such file"),
        ("/save ~nosuchuser/talk.json", "~nosuchuser/talk.json: No such file"),
        ("/load a\0b", "A file name cannot contain a null character: /load FILE"),
        ("/save a\0b", "A file name cannot contain a null character: /save FILE"),
        ("/drafter nobody", "'nobody' is not one of auto"),
        ("/num-draft-tokens many", "'many' is not a whole number"),
        ("/max-tokens -5", "0 or more, or -1 for no limit, not -5"),
        ("/max-tokens 0", "1 token or more"),
        ("/speculate maybe", "neither on nor off"),
        ("/max", "did you mean /max-tokens?"),
        ("/top", "did you mean /top-p or /top-k?"),
        ("/temperature 1", "did you mean /temp?"),
        ("/temp hot", "'hot' is not a number"),
        ("/xtc-probability 0.5", "changes sampled answers only"),
        ("/retry", "no answer yet"),
        ("/quit me", "/quit takes no argument"),
        ("/clear\nall", "/clear takes no argument"),
    ],
)
def test_a_wrong_command_changes_nothing(
    conversation: Conversation, line: str, sentence: str
) -> None:
    with pytest.raises(AkunuError) as refusal:
        say(conversation, line)
    assert sentence in str(refusal.value)
    assert conversation.options == Options()


@pytest.mark.parametrize("line", ["hello", " /help", "what is /help?", "/a/path\nand its meaning"])
def test_lines_that_are_questions(conversation: Conversation, line: str) -> None:
    assert run_command(conversation, line) is None


def test_a_command_may_span_lines(conversation: Conversation) -> None:
    say(conversation, "/system Be brief.\nBe kind.")
    assert conversation.system == "Be brief.\nBe kind."


def test_options_in_words() -> None:
    options = Options(None, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, seed=7, drafter="none")
    assert describe_options(options) == (
        "temp 0.5 · top-p 0.9 · top-k 4 · min-p 0.1 · seed 7 · no drafts · no token limit"
    )


def test_an_edit_that_the_model_is_not_sure_of_is_not_applied(
    start: Callable[[FakeEngine], EngineWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr("akunu_py.cli.conversation.is_unsure", lambda _: True)
    conversation = Conversation(start(FakeEngine("```\ny = 1\n```")), Options())
    say(conversation, f"/edit {path} rename x to y")
    with pytest.raises(AkunuError, match=r"not sure .* It was not applied"):
        say(conversation, "/apply")
    assert "+y = 1" in say(conversation, "/apply anyway")


def test_an_edit_of_a_file_is_applied(
    start: Callable[[FakeEngine], EngineWorker], tmp_path: Path
) -> None:
    (path := tmp_path / "a.py").write_bytes(b"x = 1\r\n")
    engine = FakeEngine("Here:\n```python\ny = 1\n```\nDone.", "```\nz = 1\n```", "No.")
    conversation = Conversation(start(engine), Options())
    say(conversation, f"/edit {path} rename x to y")
    assert "rename x to y\n```python\nx = 1\n```" in engine.prompts[0]
    assert path.read_bytes() == b"x = 1\r\n"
    assert "-x = 1\n+y = 1\n" in say(conversation, "/apply")
    assert path.read_bytes() == b"y = 1\r\n"
    ask(conversation, "now to z")
    say(conversation, "/apply")
    assert path.read_bytes() == b"z = 1\r\n"
    with pytest.raises(AkunuError, match=r"unchanged\. It was not applied"):
        say(conversation, "/apply")
    ask(conversation, "and now?")
    with pytest.raises(AkunuError, match="answered without an edit: No"):
        say(conversation, "/apply")
    (other := tmp_path / "b.py").write_text("x = 1\n")
    path.write_text("of another\n")
    ask(conversation, "again")  # the engine says OK
    with pytest.raises(AkunuError, match="without an edit: OK"):
        say(conversation, f"/apply {other}")


def test_what_cannot_be_applied_is_refused(conversation: Conversation, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="not clear which file"):
        say(conversation, "/apply")
    with pytest.raises(InvalidRequestError, match="The file or what to change is missing"):
        say(conversation, "/edit a.py")
    (path := tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(InvalidRequestError, match="There is no answer yet"):
        say(conversation, f"/apply {path}")
    conversation.options = Options(max_tokens=2)
    say(conversation, f"/edit {path} rename x")
    with pytest.raises(InvalidRequestError, match="The last answer was cut"):
        say(conversation, "/apply")


def test_a_doubtful_answer_is_applied_by_who_wants_that(
    start: Callable[[FakeEngine], EngineWorker], tmp_path: Path
) -> None:
    (path := tmp_path / "a.py").write_text(f"{F}\n\n{G}")
    conversation = Conversation(start(FakeEngine(f"```\n{F}```", "No.")), Options())
    say(conversation, f"/edit {path} rename x to y in f and g")
    with pytest.raises(AkunuError, match=r"It was not applied; `/apply anyway` does that\."):
        say(conversation, "/apply")
    (other := tmp_path / "b.py").write_text(f"{F}\n\n{G}")
    assert "-def g" in say(conversation, f"/apply anyway {other}")
    assert other.read_text() == F
    say(conversation, f"/apply anyway {path}")
    assert path.read_text() == F
    ask(conversation, "and now?")
    with pytest.raises(AkunuError, match="without an edit: No"):
        say(conversation, "/apply anyway")


def test_an_example_does_not_replace_a_file(
    start: Callable[[FakeEngine], EngineWorker], tmp_path: Path
) -> None:
    (path := tmp_path / "notes").write_text("my\nown\nnotes\nof\nlast\nyear\n")
    conversation = Conversation(start(FakeEngine("Run\n```\nls\n```")), Options())
    ask(conversation, "How do I list files?\n```\nremove\n```")
    with pytest.raises(AkunuError, match="drops 5 of 6 lines"):
        say(conversation, f"/apply {path}")


def test_an_answer_that_was_stopped_is_not_applied(
    start: Callable[[FakeEngine], EngineWorker], tmp_path: Path
) -> None:
    (path := tmp_path / "a.py").write_text("x = 1\n")
    conversation = Conversation(start(FakeEngine(ENDLESS)), Options())
    turn = run_command(conversation, f"/edit {path} rename x")
    assert isinstance(turn, Turn)
    for _ in turn:
        turn.cancel()
    assert turn.finish is Finish.CANCELLED
    with pytest.raises(InvalidRequestError, match="The last answer was stopped"):
        say(conversation, "/apply")


def test_a_file_that_changed_since_the_edit_was_asked_for_is_left_alone(
    start: Callable[[FakeEngine], EngineWorker], tmp_path: Path
) -> None:
    (path := tmp_path / "a.py").write_text("x = 1\n")
    conversation = Conversation(start(FakeEngine("```\ny = 1\n```")), Options())
    say(conversation, f"/edit {path} rename x to y")
    path.write_text("of another\n")
    with pytest.raises(AkunuError, match="has changed since it was read"):
        say(conversation, "/apply")
    assert path.read_text() == "of another\n"
