"""Recipe: how a character-level model is made. Plain Python, for the options' sake."""

from dataclasses import dataclass
from typing import Any, Final

PUBLISHED_STEPS: Final = 120


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Size, steps and learning rate are those of "Trading accuracy for parallelism", and so are the
    characters a step. Its 8 blocks of 64 became 4 of 128, because outputs are longer here;
    `intermediate_size` gives a Llama's MLP about as many parameters as nanoGPT's.

    Attributes:
        steps: of AdamW.
        learning_rate: the same at all of them.
        batch: blocks a step.
        block: characters a block, which is also the model's context.
        seed: of the first weights, and of which blocks are drawn.
    """

    steps: int = PUBLISHED_STEPS
    learning_rate: float = 1e-3
    batch: int = 4
    block: int = 128
    seed: int = 1337
    hidden_size: int = 32
    num_attention_heads: int = 4
    num_hidden_layers: int = 4
    intermediate_size: int = 96

    def config(self, vocabulary: int) -> dict[str, Any]:
        """The model's `config.json`."""
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocabulary,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.block,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }
