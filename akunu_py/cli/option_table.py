"""Every option of the command line, in one table: its flag, its values, its default, its help.

`parser.py` makes the argument parsers from it, and fills the dataclasses of `settings.py`, field
by field. Plain Python: a wrong option is refused before any library is loaded.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from akunu_py.bench.baselines import ALL_DRAFTERS
from akunu_py.cli.readers import (
    PLANNED,
    byte_count,
    chat_template,
    draft_tokens,
    file_path,
    name_list,
    number,
    page_origin,
    schema_file,
    template_args,
    text,
    token_bias,
    token_limit,
    whole_number,
)
from akunu_py.decoding.scheduler import DEFAULT_PARALLEL, MAX_PARALLEL
from akunu_py.drafting import MODEL_DRAFTER
from akunu_py.machine.backend import WEIGHT_LAYOUTS
from akunu_py.model.files import BUNDLED_MODEL
from akunu_py.options import (
    DEFAULT_KV_GROUP_SIZE,
    DEFAULT_MAX_TOKENS,
    DEFAULT_QUANTIZED_KV_START,
    DEFAULT_RANK_TIMEOUT_S,
    DEFAULT_REPETITION_CONTEXT,
    DEFAULT_XTC_THRESHOLD,
    MAX_DRAFT_TOKENS,
)
from akunu_py.server.settings import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_QUEUE

USER_DRAFTERS: Final = ("auto", "ngram", MODEL_DRAFTER, "none")
"""The drafters that a user can choose."""
BENCH_DRAFTERS: Final = tuple(ALL_DRAFTERS)
"""All drafters, those of other systems included."""
EVERY: Final = "all"
ANSWERS: Final = ("own", "forced")
WORKLOADS: Final = ("edit", "fill-in", "structure", "question", "novel")

_CHAT_MAX_TOKENS: Final = 1024  # an answer in a conversation often repeats a whole file
_MAX_PORT: Final = 65535
_MAX_S: Final = 3600.0
_NO_LIMIT: Final = -1
_MAX_HINTS: Final = 3


@dataclass(frozen=True)
class Range:
    """The numbers that an option takes; with `above`, the least one itself is too small."""

    least: float
    most: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.least:g} and at most {self.most:g}"
        if self.most == math.inf:
            return f"{self.least:g} or more"
        return f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Option:
    """A row of the table.

    Attributes:
        flag: the option as it is typed; a name without dashes is a positional argument.
        read: makes the value of a word; raises ArgumentTypeError.
        short: a second way to type it.
        field: the field of the settings that takes the value; named like the flag if not given.
        group: its heading in the help.
        quick: the default of commands with `--quick`, if that is given.
        default_text: the default in the help; made from `default` if not given.
        nargs: how many words it takes, as in argparse: one if None, `+`, `*`, or `?`, which takes
            `const` without a word.
        repeated: whether it may be given several times, with one word each.
        const: the value of an option that is given without a word.
    """

    flag: str
    commands: tuple[str, ...]
    help: str
    read: Callable[[str], Any] = text
    _: KW_ONLY
    short: str | None = None
    metavar: str | None = None
    field: str = ""
    group: str = ""
    default: Any = None
    quick: Any = None
    default_text: str | None = None
    choices: tuple[str, ...] | None = None
    within: Range | None = None
    nargs: Literal["+", "*", "?"] | None = None
    repeated: bool = False
    const: Any = None
    required: bool = False

    @property
    def name(self) -> str:
        """The field of the settings that it fills."""
        return self.field or self.flag.lstrip("-").replace("-", "_")

    @property
    def described(self) -> str:
        """The help, with the default."""
        default = self.default_text
        if default is None and self.const is None and self.default not in (None, False, ()):
            default = str(self.default)
        return self.help if default is None else f"{self.help} (default: {default})"


_LOADING: Final = ("chat", "generate", "serve", "doctor", "bench cost", "bench speedup")
_ANSWERING: Final = ("chat", "generate")
_DRAFTING: Final = (*_ANSWERING, "serve")
_TEMPLATING: Final = (*_DRAFTING, "bench speedup")
_COMPARISONS: Final = ("bench speedup", "bench replay")
_TIMED: Final = ("bench cost", "bench speedup")
_BENCH: Final = (*_TIMED, "bench replay")
_SERVE: Final = ("serve",)
_GENERATE: Final = ("generate",)
_SPEEDUP: Final = ("bench speedup",)
_REPLAY: Final = ("bench replay",)
_INDEX: Final = ("index",)

_MODEL: Final = "model"
_ANSWER: Final = "answer"
_DEFAULTS: Final = "answer, unless the request sets it"
_SPECULATION: Final = "speculation: the same text in fewer forwards"
_SERVER: Final = "server"
_API_DEFAULT: Final = "the API's own"

_FILTERS: Final = (
    Option("--temp", _ANSWERING, "temperature", number, metavar="T", field="temperature",
           group=_ANSWER, default=0.0, default_text="0, greedy"),
    Option("--top-p", _ANSWERING, "sample from the most likely tokens that make up P", number,
           metavar="P", group=_ANSWER, default=1.0, default_text="1, all"),
    Option("--top-k", _ANSWERING, "sample from the K most likely tokens", whole_number, metavar="K",
           group=_ANSWER, default=0, default_text="0, all"),
    Option("--min-p", _ANSWERING, "sample from tokens at least P times as likely as the best one",
           number, metavar="P", group=_ANSWER, default=0.0, default_text="0, all"),
    Option("--xtc-probability", _ANSWERING, "how often to exclude the likely tokens but the least "
           "likely of them", number, metavar="P", group=_ANSWER, default=0.0,
           default_text="0, never"),
    Option("--xtc-threshold", _ANSWERING, "how likely such a token is, at most 0.5", number,
           metavar="P", group=_ANSWER, default=DEFAULT_XTC_THRESHOLD),
)  # fmt: skip

OPTIONS: Final = (
    Option("FILE", _REPLAY, "JSON lines, gzipped or not: prompts and their answers", file_path,
           field="files", default=(), nargs="*"),
    Option("PATH", _INDEX, "the folders of projects to learn, or to learn again", file_path,
           field="paths", default=(), nargs="*"),
    Option("--list", _INDEX, "list the projects in memory", field="lists", default=False,
           const=True),
    Option("--stats", _INDEX, "list them with what they take", default=False, const=True),
    Option("--forget", _INDEX, "delete what is known of the project in this folder; may be "
           "repeated", file_path, metavar="PATH", field="forgotten", default=(), repeated=True),
    Option("--forget-all", _INDEX, "delete what is known of all projects", field="forgets_all",
           default=False, const=True),
    Option("--prompt", _GENERATE, "the text to continue; - reads it from standard input",
           short="-p", metavar="TEXT", required=True),
    Option("--suffix", _GENERATE, "fill the gap between the prompt and this text", metavar="TEXT"),
    Option("--chat", _GENERATE, "ask the prompt as a question, with the chat template",
           field="as_question", default=False, const=True),
    Option("--system-prompt", _ANSWERING, "the system message", metavar="TEXT"),
    Option("--prefill-response", _GENERATE, "how the answer begins, with --chat; not printed again",
           metavar="TEXT"),
    Option("--schema", _GENERATE, "answer in JSON that matches this JSON schema", schema_file,
           metavar="FILE", field="grammar"),
    Option("--show-drafts", _ANSWERING, "colour the draft tokens that the model accepted",
           default=False, const=True),
    Option("--quiet", ("chat",), "begin without a greeting", default=False, const=True),
    Option("--verbose", _GENERATE, "report speed and peak memory, even if standard error is not "
           "a terminal", default=False, const=True),

    Option("--host", _SERVE, "the address to listen on, or several with commas between",
           metavar="HOST", group=_SERVER,
           default=DEFAULT_HOST, default_text=f"{DEFAULT_HOST}, this machine only"),
    Option("--port", _SERVE, "the port; 0 takes a free one", whole_number, metavar="N",
           group=_SERVER, default=DEFAULT_PORT, within=Range(0, _MAX_PORT)),
    Option("--api-key", _SERVE, "what clients must send as a Bearer token", metavar="KEY",
           group=_SERVER),
    Option("--alias", _SERVE, "the model's name for clients, or several with commas between",
           name_list, metavar="NAME", field="aliases", group=_SERVER, default=(),
           default_text="its own"),
    Option("--cors", _SERVE, "let web pages of this origin use the server; `localhost` stands for "
           "all pages of this machine; may be repeated",
           page_origin, metavar="ORIGIN", field="origins", group=_SERVER, default=(),
           repeated=True),
    Option("--allow-host", _SERVE, "another name of this server for its clients; may be repeated",
           metavar="NAME", field="hosts", group=_SERVER, default=(), repeated=True),
    Option("--disable", _SERVE, "do without this page: page, slots or metrics; may be repeated",
           metavar="NAME", field="disabled", group=_SERVER, default=(), repeated=True,
           choices=("page", "slots", "metrics")),
    Option("--queue", _SERVE, "requests that may wait", whole_number, metavar="N", group=_SERVER,
           default=DEFAULT_QUEUE, within=Range(1)),
    Option("--parallel", _SERVE, "requests answered at a time, fewer if memory is short",
           whole_number, metavar="N", group=_SERVER, default=DEFAULT_PARALLEL,
           within=Range(1, MAX_PARALLEL)),
    Option("--log-level", _SERVE, "how much to log: DEBUG, INFO, WARNING, ERROR or CRITICAL",
           str.upper, metavar="LEVEL", group=_SERVER, default="INFO",
           choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")),
    Option("--log-prompts", _SERVE, "allow prompts in the log", group=_SERVER, default=False,
           const=True),

    Option("--drafter", _COMPARISONS, f"the drafters: {', '.join(BENCH_DRAFTERS)}, or {EVERY}",
           metavar="NAME", field="drafters", default=("auto", "ngram"), default_text="auto ngram",
           choices=(*BENCH_DRAFTERS, EVERY), nargs="+"),
    Option("--num-draft-tokens", _SPEEDUP, f"maximum of draft tokens per round; with {PLANNED}, "
           "the planner chooses", draft_tokens, metavar="N", default=(None, 4, 8, 16),
           default_text=f"{PLANNED} 4 8 16", within=Range(0, MAX_DRAFT_TOKENS), nargs="+"),
    Option("--num-draft-tokens", _REPLAY, f"maximum of draft tokens per round; with {PLANNED}, "
           "the planner chooses", draft_tokens, metavar="N", default=(None,), default_text=PLANNED,
           within=Range(0, MAX_DRAFT_TOKENS), nargs="+"),
    Option("--workloads", _SPEEDUP, f"built-in requests to run: {', '.join(WORKLOADS)}",
           metavar="KIND", default=WORKLOADS, default_text="all", choices=WORKLOADS, nargs="*"),
    Option("--data", _SPEEDUP, "files of further requests, as for `bench replay`; each is a "
           "workload", file_path, metavar="FILE", default=(), nargs="+"),
    Option("--answers", _SPEEDUP, "own: the model's own answers; forced: the reference answers, "
           "as a better model would give them, with all forwards computed", default="both",
           choices=(*ANSWERS, "both")),
    Option("--prompts", _SPEEDUP, "requests of each workload and file", whole_number, metavar="N",
           default=4, quick=2, within=Range(1)),
    Option("--rounds", _SPEEDUP, "how often each contestant answers each request", whole_number,
           metavar="N", default=3, quick=1, within=Range(1)),
    Option("--max-tokens", _SPEEDUP, "tokens to generate at most", whole_number, short="-m",
           metavar="N", default=192, quick=64, within=Range(2)),
    Option("--quick", _SPEEDUP, "2 requests, 1 round, 64 tokens: a rough result", const=True),
    Option("--memory", _REPLAY, "replay a fifth of the files in a folder without and with a memory "
           "of the others", file_path, metavar="PATH", default=(), nargs="+"),
    Option("--model", (*_REPLAY, *_INDEX), "the model whose tokenizer to use; its weights are "
           "not needed", metavar="NAME", default=BUNDLED_MODEL),
    Option("--costs", _REPLAY, "published costs by name (m4-pro, m5-max ...), a file made by "
           "`bench cost --json`, or `here`", metavar="NAME", default=(), nargs="+",
           default_text="all published ones, and those measured here"),
    Option("--keep", _REPLAY, "let drafters use the text of earlier requests",
           field="keeps", default=False, const=True),
    Option("--max-requests", _REPLAY, "take the first N requests of each file", whole_number,
           metavar="N", default_text="all", within=Range(1)),
    Option("--seconds", _TIMED, "how long to measure the cost of forwards", number, metavar="S",
           default=10.0, default_text="10", within=Range(0, _MAX_S, above=True)),

    Option("--json", ("generate", "doctor", *_BENCH), "print one JSON object", field="as_json",
           default=False, const=True),
    Option("--report", ("doctor",), "measure for a few minutes and write FILE.md and FILE.json, to "
           "be shared", file_path, metavar="FILE", nargs="?", const=Path("akunu-report")),
    Option("--plot", _BENCH, "draw the result into a .png, .svg or .pdf file", file_path,
           metavar="FILE"),

    Option("--model", _LOADING, f"a folder, a name on the hub, or `{BUNDLED_MODEL}`, the bundled "
           "model", metavar="NAME", field="name", group=_MODEL, default=BUNDLED_MODEL),
    Option("--weights", _LOADING, "layout of the weights in memory; auto takes the fastest on this "
           "machine", group=_MODEL, default="auto", choices=WEIGHT_LAYOUTS),
    Option("--max-context", _LOADING, "the most tokens that a prompt and its answer may have",
           whole_number, metavar="N", group=_MODEL, default_text="the model's", within=Range(1)),
    Option("--adapter-path", _LOADING, "the folder of an adapter (LoRA) that mlx-lm trained on the "
           "model", metavar="FOLDER", group=_MODEL),
    Option("--trust-remote-code", _LOADING, "run Python code that comes with the model",
           group=_MODEL, default=False, const=True),
    Option("--chat-template", _TEMPLATING, "a Jinja template instead of the model's own, or a file "
           "with one", chat_template, metavar="TEMPLATE", group=_MODEL),
    Option("--use-default-chat-template", _TEMPLATING, "use ChatML if the model has no chat "
           "template", group=_MODEL, default=False, const=True),
    Option("--chat-template-args", _TEMPLATING, "variables for the chat template as JSON, such as "
           """'{"enable_thinking": false}'""", template_args, metavar="JSON", group=_MODEL),
    Option("--prefill-step-size", _LOADING, "prompt tokens per forward; a cancelled request ends "
           "after the current forward", whole_number, metavar="N", group=_MODEL,
           default_text="chosen by the machine", within=Range(1)),
    Option("--prompt-cache-bytes", ("chat", *_SERVE), "memory that computed prompts may take (4GB, "
           "500MB; 0 keeps one prompt only), and a server's folder as much again", byte_count,
           metavar="N", group=_MODEL, default_text="a quarter of the free memory; 8GB on disk"),
    Option("--prompt-cache-dir", _SERVE, "keep computed prompts in this folder, so that a server "
           "that starts again need not compute them", file_path, metavar="DIR", group=_MODEL),
    Option("--prompt-cache-file", _ANSWERING, "keep what was computed in this file, so that a "
           "later answer need not compute it again; /save and /load keep a chat's messages",
           file_path, metavar="FILE", group=_MODEL),
    Option("--kv-bits", _LOADING, "quantize keys and values to so many bits: 4 or 8",
           whole_number, metavar="N", group=_MODEL),
    Option("--kv-group-size", _LOADING, "numbers that share a scale: 32, 64 or 128",
           whole_number, metavar="N", group=_MODEL, default=DEFAULT_KV_GROUP_SIZE),
    Option("--quantized-kv-start", _LOADING, "tokens of context from which on they are quantized",
           whole_number, metavar="N", group=_MODEL, default=DEFAULT_QUANTIZED_KV_START),
    Option("--max-kv-size", _LOADING, "tokens that layers with full attention keep, at least 16: "
           "the first 4 and the last ones; the model forgets those between", whole_number,
           metavar="N", group=_MODEL, default_text="all"),
    Option("--pipeline", _LOADING, "with `mlx.launch`: give each process some of the layers, "
           "instead of a part of each", group=_MODEL, default=False, const=True),
    Option("--rank-timeout", _LOADING, "with `mlx.launch`: seconds after which a process that does "
           "not answer counts as lost", number, metavar="S", group=_MODEL,
           default=DEFAULT_RANK_TIMEOUT_S, within=Range(0, _MAX_S, above=True)),
    Option("--draft-model", _DRAFTING, "a smaller model with the same tokenizer, which drafts",
           metavar="NAME", group=_MODEL),

    Option("--max-tokens", ("chat",), "tokens to generate at most; -1 sets no limit", token_limit,
           short="-m", metavar="N", group=_ANSWER, default=_CHAT_MAX_TOKENS),
    Option("--max-tokens", _GENERATE, "tokens to generate at most; -1 sets no limit", token_limit,
           short="-m", metavar="N", group=_ANSWER, default=DEFAULT_MAX_TOKENS),
    Option("--max-tokens", _SERVE, "tokens to generate at most; -1 sets no limit", whole_number,
           short="-m", metavar="N", group=_DEFAULTS, default_text=_API_DEFAULT,
           within=Range(_NO_LIMIT)),
    Option("--stop", _ANSWERING, "end the answer before this text; may be repeated",
           metavar="TEXT", group=_ANSWER, default=(), repeated=True),
    *_FILTERS,
    *(
        replace(option, commands=_SERVE, group=_DEFAULTS, default=None, default_text=_API_DEFAULT)
        for option in _FILTERS
    ),
    Option("--seed", _ANSWERING, "repeat a sampled answer", whole_number, metavar="N",
           group=_ANSWER),
    Option("--seed", _SERVE, "the seed of sampled answers", whole_number, metavar="N",
           group=_DEFAULTS, default_text="random", within=Range(0)),
    Option("--repetition-penalty", _ANSWERING, "make recent tokens less likely; above 1", number,
           metavar="R", group=_ANSWER, default=1.0, default_text="1, off"),
    Option("--repetition-context-size", _ANSWERING, "how many tokens are recent", whole_number,
           metavar="N", group=_ANSWER, default=DEFAULT_REPETITION_CONTEXT),
    Option("--presence-penalty", _ANSWERING, "make generated tokens less likely; above 0", number,
           metavar="P", group=_ANSWER, default=0.0, default_text="0, off"),
    Option("--frequency-penalty", _ANSWERING, "the same, for each time that a token was generated",
           number, metavar="P", group=_ANSWER, default=0.0, default_text="0, off"),
    Option("--logit-bias", _ANSWERING, "add VALUE to the logit of the token ID; may be repeated",
           token_bias, metavar="ID=VALUE", group=_ANSWER, default=(), repeated=True),

    Option("--drafter", _DRAFTING, f"the drafter: {', '.join(USER_DRAFTERS)}", metavar="NAME",
           group=_SPECULATION, default_text="auto, or model with --draft-model",
           choices=USER_DRAFTERS),
    Option("--project", _DRAFTING, "draft from this indexed folder too; auto takes the git root of "
           "the current folder; may be repeated", metavar="PATH", field="projects", default=(),
           group=_SPECULATION, repeated=True),
    Option("--no-memory", ("chat", "serve"), "do not draft from earlier requests",
           field="remembers", default=True, const=False, group=_SPECULATION),
    Option("--num-draft-tokens", _DRAFTING, "maximum of draft tokens per round, up to "
           f"{MAX_DRAFT_TOKENS}", whole_number, metavar="N", group=_SPECULATION,
           default_text="chosen in each round"),
    Option("--no-speculate", _DRAFTING, "decode plainly, as with --drafter none",
           group=_SPECULATION, default=False, const=True),
    Option("--exact", _DRAFTING, "drafts change no token, whatever rounding does; slower",
           group=_SPECULATION, default=False, const=True),
)  # fmt: skip


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """A question that names what the user may have meant; empty if no name is similar.

    A name that begins with the word, or that the word begins with, is preferred.
    """
    from difflib import get_close_matches  # noqa: PLC0415  (needed only when something is wrong)

    meant = [name for name in names if name.startswith(word) or word.startswith(name)]
    if not 0 < len(meant) <= _MAX_HINTS:
        meant = get_close_matches(word, names, n=1)
    return f"did you mean {' or '.join(meant)}?" if meant else ""


def options_of(command: str) -> tuple[Option, ...]:
    """The options that a command takes."""
    return tuple(option for option in OPTIONS if command in option.commands)
