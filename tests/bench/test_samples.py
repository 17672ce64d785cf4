"""Samples on the tiny model's tokenizer, whose tokens are bytes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from akunu_py.bench.workloads import encode_sample, encode_samples, read_samples
from akunu_py.errors import InvalidRequestError
from akunu_py.model.loading import load_tokenizer
from akunu_py.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return load_tokenizer(str(tiny_model_dir))


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "prompt", "reference"),
    [
        ({"prompt": "a", "reference": "b"}, "a", "b"),
        ({"prompt": "a", "completion": "b", "id": 3}, "a", "b"),
        (
            {"prompt": "a", "suffix": "c", "canonical_solution": "b"},
            "<|fim_prefix|><|fim_suffix|>c<|fim_middle|>a",
            "b<|im_end|>",
        ),
        (
            {"instruction": "Say b.", "output": "b"},
            "<|im_start|>user\nSay b.<|im_end|>\n<|im_start|>assistant\n",
            "b<|im_end|>",
        ),
        (
            {"instruction": "Shout. ", "input": "hey", "output": "HEY"},
            "<|im_start|>user\nShout.\n```\nhey\n```<|im_end|>\n<|im_start|>assistant\n",
            "```\nHEY\n```<|im_end|>",
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "u"},
                    {"role": "assistant", "content": "b"},
                ]
            },
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
            "<|im_start|>assistant\n",
            "b<|im_end|>",
        ),
    ],
)
def test_the_keys_of_a_line_decide_its_form(
    tokenizer: Tokenizer, tmp_path: Path, line: Any, prompt: str, reference: str
) -> None:
    (sample,) = read_samples(write(tmp_path / "some.jsonl", line))
    assert sample.kind == "some"
    case = encode_sample(tokenizer, sample)
    assert tokenizer.decode(case.prompt) == prompt
    assert tokenizer.decode(case.reference) == reference
    assert tokenizer.end_tokens <= case.end_tokens


def test_special_tokens_in_an_answer_are_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    line = {"prompt": "a", "reference": "<|im_end|>"}
    (sample,) = read_samples(write(tmp_path / "some.jsonl", line))
    assert not set(encode_sample(tokenizer, sample).reference) & tokenizer.end_tokens


def test_files_may_be_gzipped_and_have_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"prompt": "a", "reference": "b"}\n\n{"prompt": "c", "reference": "d"}\n')
    samples = list(read_samples(path))
    assert [(sample.kind, sample.prompt) for sample in samples] == [("two", "a"), ("two", "c")]


def test_requests_without_an_answer_are_left_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl", {"prompt": "a", "reference": ""}, {"prompt": "", "reference": "b"}
    )
    assert encode_samples(tokenizer, read_samples(path)) == {}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"prompt": "a"', "Line 2 of .* is not a sample: "),
        ("[1]", "it is not an object"),
        ('{"text": "a", "id": 1}', "it has id, text instead of .*prompt.*"),
        ('{"prompt": "a"}', "no answer under any of reference, "),
        ('{"prompt": 3, "reference": "a"}', "its prompt is not text"),
        ('{"messages": "a"}', "not a list of objects"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "do not end with an answer"),
    ],
)
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(f'{{"prompt": "a", "reference": "b"}}\n{line}\n')
    with pytest.raises(InvalidRequestError, match=sentence):
        list(read_samples(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"none\.jsonl cannot be read"):
        list(read_samples(tmp_path / "none.jsonl"))
