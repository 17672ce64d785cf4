import pytest

from akunu_py.engine import Engine
from akunu_py.text.chat import ChatTranscript


@pytest.fixture
def transcript(engine: Engine) -> ChatTranscript:
    return ChatTranscript(engine.tokenizer, [{"role": "system", "content": "Be brief."}])


def test_a_turn_is_rendered_by_the_models_template(
    engine: Engine, transcript: ChatTranscript
) -> None:
    text = engine.tokenizer.decode(transcript.prompt_for("hello"))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("answer", ["fine", "", "naïve ünïcode 😀", "  spaces  "])
def test_the_next_prompt_starts_with_the_computed_ids(
    engine: Engine, transcript: ChatTranscript, answer: str
) -> None:
    prompt = transcript.prompt_for("hello")
    generated = engine.tokenizer.encode_plain(answer)
    following = transcript.after_turn("hello", prompt, answer, generated).prompt_for("and now?")

    assert following[: len(prompt) + len(generated)] == [*prompt, *generated]
    assert engine.tokenizer.decode(following).endswith(
        f"{answer}<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_ids_that_encoding_would_not_give_are_kept(
    engine: Engine, transcript: ChatTranscript
) -> None:
    prompt = transcript.prompt_for("hello")
    odd = [engine.tokenizer.encode_plain(letter)[0] for letter in "ab"]
    after = transcript.after_turn("hello", prompt, "ab", odd)
    assert after.prompt_for("more")[len(prompt) : len(prompt) + 2] == odd


def test_a_conversation_may_begin_with_messages(engine: Engine) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = engine.tokenizer.decode(ChatTranscript(engine.tokenizer, said).prompt_for("c"))
    assert text.startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>")
