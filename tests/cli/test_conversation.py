"""What a conversation keeps, and that it computes nothing twice."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import akunu_py
from akunu_py.cli.conversation import Conversation, Turn
from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.options import Options
from akunu_py.round import Finish
from akunu_py.worker import EngineWorker
from tests.cli.fakes import ENDLESS, SILENT, FakeEngine

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


def test_the_cached_prefix_is_not_computed_twice(real: Conversation) -> None:
    first = real.ask("hello")
    receive(first)
    second = real.ask("more")
    receive(second)
    # All but the answer's last token, which no forward has seen, comes from the cache.
    seen = first.stats.prompt_tokens + first.stats.generated_tokens
    assert second.stats.cached_tokens == seen - (first.finish is not Finish.EOS)


def test_the_cached_prefix_is_not_computed_twice_after_an_interruption(real: Conversation) -> None:
    real.options = Options(max_tokens=None)
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
