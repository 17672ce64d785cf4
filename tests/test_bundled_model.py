"""The model that comes with the package, from end to end."""

from dataclasses import replace

import pytest
from mlx_lm import load as load_with_mlx_lm

import akunu_py
from akunu_py.bench.device_report import find_differences, make_prompts, mlx_lm_answer
from akunu_py.cli.terminal import EXAMPLES
from akunu_py.engine import Engine
from akunu_py.model.files import bundled_model
from akunu_py.options import Options
from akunu_py.rounds import Finish
from akunu_py.text.fim import FillRequest

NEAR_TIE = 1e-2
"""Two logits this close may change places between forwards of different size on a real BLAS."""

REPEATING = "names = [" + '"first", "second", "third", ' * 6


@pytest.fixture(scope="module")
def ember() -> Engine:
    return akunu_py.load()


def said(*contents: str) -> list[dict[str, str]]:
    """A conversation that the user begins."""
    roles = "user", "assistant"
    return [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]


def test_drafted_plain_and_mlx_lms_answers_agree(ember: Engine) -> None:
    for index, prompt in enumerate(make_prompts(ember, 1, 16)):
        plain, *drafted = (
            ember.generate(prompt.tokens, Options(16, drafter=name)).token_ids
            for name in ("none", "ngram", "auto")
        )
        mlx_lm = mlx_lm_answer(ember, prompt.tokens, 16)
        others = dict(zip(("ngram", "auto", "mlx-lm"), (*drafted, mlx_lm), strict=True))
        differences = find_differences(ember, index, prompt, plain, others)
        assert all(found.top_2_gap < NEAR_TIE for found in differences)


def test_repeated_text_takes_fewer_forwards_than_tokens(ember: Engine) -> None:
    answer = ember.generate(REPEATING, Options(64, drafter="ngram", num_draft_tokens=4))
    assert answer.stats.tokens_per_forward > 1.5


def test_a_prediction_is_copied_and_changes_nothing(ember: Engine) -> None:
    question = "Write a Python function that computes the area of a rectangle."
    prompt = said(question)
    plain = ember.generate(prompt, Options(60, drafter="none"))
    options = Options(60, num_draft_tokens=8)
    alone = ember.generate(prompt, options)
    for prediction in (plain.text, plain.text.removeprefix("```python\n")):
        references = ("print(1)\n", prediction)
        predicted = ember.generate(prompt, replace(options, references=references))
        assert predicted.text == alone.text
        assert predicted.stats.accepted > alone.stats.accepted
        assert predicted.stats.tokens_per_forward > 2


def test_mlx_lm_loads_it_like_any_other() -> None:
    network, tokenizer = load_with_mlx_lm(str(bundled_model()))
    assert network.model_type == "llama"
    assert tokenizer.has_chat_template
    assert tokenizer.decode(tokenizer.encode("def f(x):\n\treturn '▁é😀'  # x\r\n")) == (
        "def f(x):\n\treturn '▁é😀'  # x\r\n"
    )


def test_a_second_turn_computes_only_what_is_new(ember: Engine) -> None:
    question = "Rename `x` to `y` in:\n```python\nx = 1\n```"
    first = ember.generate(said(question), Options(48))
    second = ember.generate(said(question, first.text, "Thanks."), Options(4))
    assert second.stats.cached_tokens >= first.stats.prompt_tokens + len(first.token_ids) - 1


def test_it_answers_the_greetings_requests_right(ember: Engine) -> None:
    expected = (
        "```python\ndef f(total): return total + 1\n```",
        '```python\ndef area(w, h):\n    """Compute area from w and h."""\n    return w * h\n```',
        "```python\nasync def fetch(url): return get(url)\n```",
    )
    before = list[str]()
    for example, start in zip(EXAMPLES, expected, strict=True):
        answer = ember.generate(said(*before, example), Options(64))
        assert answer.text.startswith(start)
        assert ember.generate(said(example), Options(64)).text.startswith(start)
        before += [example, answer.text]


def test_it_fills_gaps_and_ends_by_itself(ember: Engine) -> None:
    gap = FillRequest(
        "class Box:\n    def __init__(self, width, height):\n        self.width = width\n        ",
        "\n\n    def area(self):\n        return self.width * self.height\n",
    )
    answer = ember.generate(gap, Options(32))
    assert answer.finish_reason is Finish.EOS
    assert answer.text.startswith("self.")
    assert "<|" not in answer.text


def test_it_has_nothing_to_say_about_drafting(ember: Engine) -> None:
    assert ember.notices == [] or ember.backend.blas == "reference"


def test_tools_told_in_a_message_stay(ember: Engine) -> None:
    offer = "You can call these functions:\n{}\nWrite a call like this:\n<tool_call>\n</tool_call>"
    messages = said(f"{offer}\n\nrename a to b: def f(a): return a", "No.", "hint: def g(c): pass")
    prompt = ember.tokenizer.render_chat(messages, open_answer=True)
    assert offer in prompt
