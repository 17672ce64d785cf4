"""A character model that all tests of the seed benchmark share."""

import pytest

from benchmarks.seeds.char_model import CharModel, Recipe, find_char_model
from benchmarks.seeds.char_text import CharText

TEXT = CharText("vowels", "abab\ncde é " * 1000)
TINY = Recipe(
    steps=8,
    learning_rate=0.03,
    batch=2,
    block=64,
    hidden_size=16,
    num_attention_heads=2,
    num_hidden_layers=1,
    intermediate_size=16,
)


@pytest.fixture(scope="session")
def trained() -> CharModel:
    return find_char_model(TEXT, TINY)
