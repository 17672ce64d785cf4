"""What a conversation keeps, and that it computes nothing twice; saving and loading: completely or
not at all, and never over another file."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import akunu_py
from akunu_py.cli.conversation import (
    Conversation,
    SavedConversation,
    Turn,
    load_conversation,
    save_conversation,
)
from akunu_py.errors import ContextOverflowError, InvalidRequestError, SessionFileError
from akunu_py.options import Options, Sampling
from akunu_py.rounds import Finish
from akunu_py.worker import EngineWorker
from tests.cli.fakes import ENDLESS, SILENT, FakeEngine
from tests.parrot import parrot_engine

Start = Callable[[FakeEngine], EngineWorker]


def receive(turn: Turn) -> str:
    return "".join(event.text for event in turn)


def said_in(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages]


@pytest.fixture
def real(tiny_model_dir: Path) -> Iterator[Conversation]:
    """A conversation with a tiny model, whose answers never end by themselves."""
    worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)))
    yield Conversation(worker, Options(max_tokens=20), system="Be brief.")
    assert worker.close(60)


def test_turns_are_kept(start: Start) -> None:
    engine = FakeEngine("Hi.", "Bye.")
    conversation = Conversation(start(engine), Options(), system="Be brief.")
    assert receive(conversation.ask("Hello?")) == "Hi."
    assert receive(conversation.ask("Done?")) == "Bye."
    assert said_in(conversation) == ["Be brief.", "Hello?", "Hi.", "Done?", "Bye."]
    assert engine.prompts[1].startswith(engine.prompts[0] + "Hi.")
    assert len(conversation.stats) == 2


def test_an_answer_has_its_probability(real: Conversation) -> None:
    turn = real.ask("Hello?")
    receive(turn)
    assert turn.log_probability == 0.0
    real.scores = True
    scored = real.retry()
    assert receive(scored) == turn.text
    options = Options(20, logprobs=0)
    with real.worker.stream(scored.asked, options) as events:
        wanted = sum(one.logprob for event in events for one in event.logprobs)
    assert scored.log_probability == pytest.approx(wanted, abs=1e-3)
    assert wanted < -1.0


def test_a_stop_string_in_reasoning_stops_nothing(tmp_path: Path) -> None:
    worker = EngineWorker(lambda: parrot_engine(tmp_path / "parrot"))
    conversation = Conversation(worker, Options(stop=("Question:",)))
    said = "<think>Question: what?</think>Four. "
    assert receive(conversation.ask(f"{said}Question: why?")) == said
    assert said_in(conversation)[-1] == "Four. "  # as templates expect earlier answers
    assert worker.close(60)


def test_the_system_message_can_change_before_the_model_is_loaded(start: Start) -> None:
    conversation = Conversation(start(FakeEngine()), Options(), system="Be brief.")
    assert conversation.system == "Be brief."
    conversation.set_system(None)
    assert list(conversation.messages) == []


def test_an_interrupted_answer_stays(start: Start) -> None:
    engine = FakeEngine(ENDLESS)
    conversation = Conversation(start(engine), Options())
    turn = conversation.ask("Go on.")
    for _ in turn:
        turn.cancel()
    assert turn.finish is Finish.CANCELLED
    assert conversation.messages[-1] == {"role": "assistant", "content": ENDLESS}
    receive(conversation.ask("And?"))
    assert ENDLESS in engine.prompts[1]


def test_an_answer_interrupted_before_its_first_token_leaves_no_trace(start: Start) -> None:
    conversation = Conversation(start(FakeEngine(SILENT)), Options())
    turn = conversation.ask("Go on.")
    turn.cancel()
    assert receive(turn) == ""
    assert not turn.kept
    assert list(conversation.messages) == []


def test_a_refused_question_leaves_no_trace(start: Start) -> None:
    conversation = Conversation(start(FakeEngine("Hi.", context=60)), Options())
    receive(conversation.ask("Hello?"))
    before = list(conversation.messages)
    with pytest.raises(ContextOverflowError):
        receive(conversation.ask("long " * 20))
    assert list(conversation.messages) == before


def test_a_conversation_that_the_template_refuses_loses_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine("Hi.", "Bye.")
    conversation = Conversation(start(engine), Options())
    receive(conversation.ask("Hello?"))

    def refuse(*_: object, **__: object) -> str:
        raise InvalidRequestError("The template refuses it.")

    with monkeypatch.context() as patch:
        patch.setattr(engine.tokenizer, "render_chat", refuse)
        with pytest.raises(InvalidRequestError, match="template"):
            receive(conversation.ask("Done?"))
    assert said_in(conversation) == ["Hello?", "Hi."]
    assert receive(conversation.ask("Done?")) == "Bye."
    assert engine.prompts[1].startswith(engine.prompts[0] + "Hi.")


def test_retry_replaces_the_last_answer(start: Start) -> None:
    engine = FakeEngine("one", "two", "three")
    conversation = Conversation(start(engine), Options())
    with pytest.raises(InvalidRequestError, match="no answer yet"):
        conversation.retry()
    receive(conversation.ask("A?"))
    receive(conversation.ask("B?"))
    assert receive(conversation.retry()) == "three"
    assert engine.prompts[2] == engine.prompts[1]
    assert said_in(conversation) == ["A?", "one", "B?", "three"]


def test_retry_after_a_new_system_message_and_after_loading(start: Start) -> None:
    engine = FakeEngine("one", "two", "three")
    conversation = Conversation(start(engine), Options())
    receive(conversation.ask("A?"))
    conversation.set_system("Be brief.")
    assert receive(conversation.retry()) == "two"
    conversation.go_on_from(list(conversation.messages))
    assert receive(conversation.retry()) == "three"
    assert said_in(conversation) == ["Be brief.", "A?", "three"]


def test_reset_and_system(start: Start) -> None:
    conversation = Conversation(start(FakeEngine()), Options(), system="Be brief.")
    receive(conversation.ask("A?"))
    conversation.set_system("Be long.")
    assert said_in(conversation) == ["Be long.", "A?", "OK"]
    conversation.reset()
    assert said_in(conversation) == ["Be long."]
    assert conversation.stats == []


def test_the_cached_prefix_is_not_computed_twice_after_an_interruption(real: Conversation) -> None:
    (letter,) = real.worker.loading.result().tokenizer.encode_plain("a")
    real.options = Options(max_tokens=None, logit_bias=((letter, 100.0),))  # no half characters
    first = real.ask("hello")
    for event in first:
        if event.stats.generated_tokens > 5:
            first.cancel()
    real.options = Options(max_tokens=5)
    second = real.ask("more")
    receive(second)
    seen = first.stats.prompt_tokens + first.stats.generated_tokens
    assert second.stats.cached_tokens >= seen - 1
    third = real.retry()
    receive(third)
    assert third.stats.cached_tokens == third.stats.prompt_tokens - 1


SAVED = SavedConversation(
    "ember",
    [{"role": "user", "content": "Grüße?"}, {"role": "assistant", "content": "Hi."}],
    Options(max_tokens=None, temperature=0.5, seed=1, stop=("x",), drafter="none"),
)
PENALIZED = Sampling(
    repetition_penalty=1.1,
    logit_bias=((3, -1.5),),
    presence_penalty=0.5,
    frequency_penalty=-0.5,
)
STRICT = SavedConversation("ember", [], Options(drafter="model", exact=True).sampled_as(PENALIZED))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    save_conversation(file, SavedConversation("other", []))
    save_conversation(file, SAVED)
    assert load_conversation(file) == SAVED
    save_conversation(file, STRICT)
    assert load_conversation(file) == STRICT
    assert os.listdir(tmp_path) == ["talk.json"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "talk.json")
    save_conversation(tmp_path / "link.json", SAVED)
    assert (tmp_path / "link.json").is_symlink()
    assert load_conversation(tmp_path / "talk.json") == SAVED


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "talk.json"
    save_conversation(file, SAVED)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SessionFileError, match=r"talk.json: No space left on device\.$"):
        save_conversation(file, SavedConversation("other", []))
    assert load_conversation(file) == SAVED
    assert os.listdir(tmp_path) == ["talk.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_device() -> None:
    with pytest.raises(SessionFileError, match="No space left"):
        save_conversation(Path("/dev/full"), SAVED)
    assert Path("/dev/full").is_char_device()


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SessionFileError, match="No such file"):
        save_conversation(tmp_path / "no" / "talk.json", SAVED)
    with pytest.raises(SessionFileError, match="Is a directory"):
        save_conversation(tmp_path, SAVED)


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    with pytest.raises(SessionFileError, match="another name"):
        save_conversation(notes, SAVED)
    assert notes.read_text() == "precious"


SETTINGS = {
    "max_tokens": 5,
    "sampling": {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "seed": None},
    "stop": [],
    "drafter": "auto",
    "num_draft_tokens": 4,
}


def content(**changes: Any) -> dict[str, Any]:
    whole = {
        "format": "akunu-py conversation",
        "version": 1,
        "model": "ember",
        "messages": [{"role": "user", "content": "A?"}],
        "settings": SETTINGS,
    }
    return whole | changes


def test_the_format_is_kept_and_a_drafter_that_is_gone_becomes_auto(tmp_path: Path) -> None:
    path, options = tmp_path / "talk.json", Options(max_tokens=5, num_draft_tokens=4)
    for drafter in ("auto", "llama-mod"):
        path.write_text(json.dumps(content(settings=SETTINGS | {"drafter": drafter})))
        assert load_conversation(path) == SavedConversation(
            "ember", [{"role": "user", "content": "A?"}], options
        )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "another program"),
        ('{"messages": []}', "another program"),
        *(
            (json.dumps(content(**changes)), reason)
            for changes, reason in (
                ({"version": 2}, "another version"),
                ({"messages": None}, "damaged"),
                ({"messages": [{"role": "root", "content": ""}]}, "a message of the role 'root'"),
                ({"messages": [{"role": "user", "content": 1}]}, "damaged"),
                ({"messages": [{"role": "user", "content": "\ud800"}]}, "damaged"),
                ({"settings": {}}, "damaged"),
                ({"settings": SETTINGS | {"max_tokens": -3}}, "not -3"),
                ({"settings": SETTINGS | {"max_tokens": "9"}}, "must be a whole number, not '9'"),
                ({"settings": SETTINGS | {"sampling": {"temperature": 10**400}}}, "from 0 to 1000"),
                (
                    {"settings": SETTINGS | {"sampling": {"logit_bias": [[5, 10**400]]}}},
                    "ID=NUMBER",
                ),
                (
                    {"settings": SETTINGS | {"sampling": {"presence_penalty": -(10**400)}}},
                    "from -1000 to 1000",
                ),
            )
        ),
    ],
)
def test_a_file_that_is_not_a_conversation_is_refused_in_one_sentence(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "talk.json"
    path.write_text(text)
    with pytest.raises(SessionFileError, match="is not a saved conversation") as refusal:
        load_conversation(path)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SessionFileError, match="not JSON in UTF-8"):
        load_conversation(path)
    with pytest.raises(SessionFileError, match="cannot be read"):
        load_conversation(tmp_path / "none.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(content())), value=json_values)
def test_any_damage_is_a_session_file_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(json.dumps(content(**{key: value})))
    with suppress(SessionFileError):
        load_conversation(path)
