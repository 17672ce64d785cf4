"""What each command was asked to do: frozen dataclasses, read from parsed words and checked.

Plain Python: a wrong option is refused before any model library is imported.
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, Self

from akunu_py.backend import WEIGHT_LAYOUTS
from akunu_py.drafting import DRAFTER_NAMES, MODEL_DRAFTER
from akunu_py.errors import InvalidRequestError
from akunu_py.model_files import BUNDLED_MODEL
from akunu_py.options import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_REPETITION_CONTEXT,
    MOST_DRAFT_TOKENS,
    Grammar,
    Options,
    Sampling,
)

CHAT_MAX_TOKENS: Final = 1024
"""An answer in a conversation often repeats a whole file."""

_NO_LIMIT: Final = -1


class Settings(Protocol):
    """What a command's grammar and its program agree on."""

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        """Declares the command's options."""

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        """Reads the options.

        Raises:
            InvalidRequestError: if one has a value that cannot be served.
        """


@dataclass(frozen=True)
class ModelSettings:
    """Which model to load, and how.

    Attributes:
        name: the bundled model's name, a folder, or `owner/name` on the hub.
        weights: the layout of its weights, or `auto`.
        max_context: tokens that the cache is to hold; None lets it grow.
        draft_model: the name of a second model that drafts, if there is to be one.
    """

    name: str = BUNDLED_MODEL
    weights: str = "auto"
    max_context: int | None = None
    draft_model: str | None = None

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        group = parser.add_argument_group("model")
        group.add_argument(
            "--model",
            metavar="NAME",
            type=text,
            default=BUNDLED_MODEL,
            help=f"a folder, a name on the hub, or `{BUNDLED_MODEL}`, which is bundled (default)",
        )
        group.add_argument(
            "--weights",
            choices=WEIGHT_LAYOUTS,
            default="auto",
            help="how weights lie in memory; auto takes what is fastest on this machine",
        )
        group.add_argument(
            "--max-context",
            metavar="N",
            type=whole_number,
            help="tokens of context to make room for (default: as many as needed)",
        )
        group.add_argument(
            "--draft-model",
            metavar="NAME",
            type=text,
            help="a smaller model of the same tokenizer that drafts; sets --drafter model",
        )

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        if words.max_context is not None and words.max_context < 1:
            raise InvalidRequestError(f"--max-context must be 1 or more, not {words.max_context}.")
        return cls(words.model, words.weights, words.max_context, words.draft_model)


@dataclass(frozen=True)
class GenerateSettings:
    """One completion.

    Attributes:
        model: what answers.
        options: how.
        prompt: the text to continue; `-` stands for standard input.
        suffix: the text after a gap to fill; None continues the prompt.
        as_question: whether the prompt is a user's turn, to be put through the chat template.
        system_prompt: the system message before it, if any.
        as_json: whether one JSON object is wanted instead of text.
        show_drafts: whether drafted tokens are marked.
        verbose: whether to report speed even where nobody is watching.
    """

    model: ModelSettings
    options: Options
    prompt: str
    suffix: str | None = None
    as_question: bool = False
    system_prompt: str | None = None
    as_json: bool = False
    show_drafts: bool = False
    verbose: bool = False

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--prompt", "-p", metavar="TEXT", type=text, required=True,
            help="the text to continue; - reads it from standard input",
        )  # fmt: skip
        parser.add_argument(
            "--suffix", metavar="TEXT", type=text, help="fill the gap between the prompt and this"
        )
        parser.add_argument(
            "--chat", action="store_true", help="ask the prompt as a question, by the chat template"
        )
        _add_system_prompt(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--schema", metavar="FILE", type=text, help="answer in JSON as this JSON schema says"
        )
        _add_show_drafts(parser)
        parser.add_argument(
            "--verbose", action="store_true", help="report speed even if nobody is watching"
        )
        ModelSettings.add_options(parser)
        _add_answer_options(parser, DEFAULT_MAX_TOKENS)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        if words.chat and words.suffix is not None:
            raise InvalidRequestError("--suffix fills a gap in plain text; leave --chat out.")
        if words.system_prompt is not None and not words.chat:
            raise InvalidRequestError("--system-prompt needs --chat.")
        if words.json and words.show_drafts:
            raise InvalidRequestError("--show-drafts marks printed text; leave --json out.")
        return cls(
            ModelSettings.from_words(words),
            replace(_options(words), grammar=_grammar(words.schema)),
            words.prompt,
            suffix=words.suffix,
            as_question=words.chat,
            system_prompt=words.system_prompt,
            as_json=words.json,
            show_drafts=words.show_drafts,
            verbose=words.verbose,
        )


@dataclass(frozen=True)
class ChatSettings:
    """A conversation.

    Attributes:
        model: what answers.
        options: how, until a slash command changes it.
        system_prompt: the system message it begins with, if any.
        show_drafts: whether drafted tokens are marked.
    """

    model: ModelSettings
    options: Options
    system_prompt: str | None = None
    show_drafts: bool = False

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        _add_system_prompt(parser)
        _add_show_drafts(parser)
        ModelSettings.add_options(parser)
        _add_answer_options(parser, CHAT_MAX_TOKENS)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        return cls(
            ModelSettings.from_words(words),
            _options(words),
            system_prompt=words.system_prompt,
            show_drafts=words.show_drafts,
        )


def _grammar(schema: str | None) -> Grammar | None:
    """What `--schema FILE` asks for."""
    if schema is None:
        return None
    try:
        return Grammar("json_schema", Path(schema).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"--schema {schema} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"--schema {schema} is not UTF-8 text.") from error


def token_limit(wanted: int) -> int | None:
    """What `--max-tokens N` and `/length N` mean: as in mlx-lm, -1 sets no limit."""
    return None if wanted == _NO_LIMIT else wanted


def whole_number(word: str) -> int:
    """Reads an integer, for argparse."""
    try:
        return int(word)
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is not a whole number") from None


def number(word: str) -> float:
    """Reads a number, for argparse."""
    try:
        return float(word)
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is not a number") from None


def token_bias(word: str) -> tuple[int, float]:
    """Reads `ID=VALUE`, for argparse."""
    token, _, bias = word.partition("=")
    return whole_number(token), number(bias)


def text(word: str) -> str:
    """Reads text, for argparse: a word of bytes that are no UTF-8 is refused."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError("the text is not valid UTF-8") from None
    return word


def _add_system_prompt(parser: ArgumentParser) -> None:
    parser.add_argument("--system-prompt", metavar="TEXT", type=text, help="the system message")


def _add_show_drafts(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--show-drafts", action="store_true", help="colour the tokens that were drafted and stood"
    )


def _add_answer_options(parser: ArgumentParser, max_tokens: int) -> None:
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--max-tokens", "-m", metavar="N", type=whole_number, default=max_tokens,
        help=f"tokens to generate at most; -1 sets no limit (default: {max_tokens})",
    )  # fmt: skip
    group.add_argument(
        "--stop", metavar="TEXT", type=text, action="append", default=[],
        help="end the answer before this text; may be given several times",
    )  # fmt: skip
    group.add_argument(
        "--temp", metavar="T", type=number, default=0.0, help="temperature (default: 0, greedy)"
    )
    group.add_argument(
        "--top-p", metavar="P", type=number, default=1.0,
        help="sample from the likeliest tokens that make up P (default: 1, all)",
    )  # fmt: skip
    group.add_argument(
        "--top-k", metavar="K", type=whole_number, default=0,
        help="sample from the K likeliest tokens (default: 0, all)",
    )  # fmt: skip
    group.add_argument(
        "--min-p", metavar="P", type=number, default=0.0,
        help="sample from tokens at least P times as likely as the likeliest (default: 0, all)",
    )  # fmt: skip
    group.add_argument("--seed", metavar="N", type=whole_number, help="repeat a sampled answer")
    group.add_argument(
        "--repetition-penalty", metavar="R", type=number, default=1.0,
        help="make recent tokens less likely; above 1 (default: 1, off)",
    )  # fmt: skip
    group.add_argument(
        "--repetition-context-size", metavar="N", type=whole_number,
        default=DEFAULT_REPETITION_CONTEXT,
        help=f"how many tokens are recent (default: {DEFAULT_REPETITION_CONTEXT})",
    )  # fmt: skip
    group.add_argument(
        "--presence-penalty", metavar="P", type=number, default=0.0,
        help="make tokens that were generated before less likely; above 0 (default: 0, off)",
    )  # fmt: skip
    group.add_argument(
        "--frequency-penalty", metavar="P", type=number, default=0.0,
        help="the same, for every time that they were generated (default: 0, off)",
    )  # fmt: skip
    group.add_argument(
        "--logit-bias", metavar="ID=VALUE", type=token_bias, action="append", default=[],
        help="add to a token's logit; may be given several times",
    )  # fmt: skip
    group = parser.add_argument_group("speculation: the same text, in fewer forwards")
    group.add_argument(
        "--drafter", metavar="NAME", choices=(*DRAFTER_NAMES, MODEL_DRAFTER),
        help=f"who drafts: {', '.join(DRAFTER_NAMES)} (default: auto)",
    )  # fmt: skip
    group.add_argument(
        "--num-draft-tokens", metavar="N", type=whole_number,
        help=f"drafts a forward verifies, up to {MOST_DRAFT_TOKENS} "
        "(default: as many as pay on this machine)",
    )  # fmt: skip
    group.add_argument(
        "--no-speculate", action="store_const", const="none", dest="drafter",
        help="decode plainly, as --drafter none does",
    )  # fmt: skip
    group.add_argument(
        "--exact", action="store_true",
        help="decide near-ties as plain decoding does, at the price of more forwards",
    )  # fmt: skip


def _options(words: Namespace) -> Options:
    if words.drafter == MODEL_DRAFTER and words.draft_model is None:
        raise InvalidRequestError("--drafter model needs --draft-model NAME.")
    return Options(
        max_tokens=token_limit(words.max_tokens),
        sampling=Sampling(
            words.temp,
            words.top_p,
            words.top_k,
            words.min_p,
            words.seed,
            repetition_penalty=words.repetition_penalty,
            repetition_context_size=words.repetition_context_size,
            logit_bias=tuple(words.logit_bias),
            presence_penalty=words.presence_penalty,
            frequency_penalty=words.frequency_penalty,
        ),
        stop=tuple(words.stop),
        drafter=words.drafter or (MODEL_DRAFTER if words.draft_model else "auto"),
        num_draft_tokens=words.num_draft_tokens,
        exact=words.exact,
    )
