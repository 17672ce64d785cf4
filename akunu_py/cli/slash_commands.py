"""Slash commands: what a line that begins with `/` does to a conversation.

A command takes the conversation and the words after its name, and returns a text to show, or a
turn to answer. It raises an `AkunuError` if the words make no sense, and changes nothing then.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from akunu_py.cli.conversation import Conversation, Turn
from akunu_py.cli.conversation_file import (
    SavedConversation,
    load_conversation,
    save_conversation,
)
from akunu_py.cli.option_table import USER_DRAFTERS, did_you_mean
from akunu_py.cli.readers import (
    PLANNED,
    draft_tokens,
    file_path,
    number,
    token_limit,
    whole_number,
)
from akunu_py.cli.render import count, stats_line
from akunu_py.errors import InvalidRequestError
from akunu_py.options import DEFAULT_XTC_THRESHOLD, Options, Sampling
from akunu_py.stats import Stats

Reply = str | Turn

_SWITCH: Final = ("on", "off")
_XTC: Final = ("xtc-probability", "xtc-threshold")
_SAMPLER: Final = ("greedy", "temp", "top-k", "top-p", "min-p", *_XTC, "seed")
_SAMPLER_USAGE: Final = (
    "greedy, or any of temp 0.8, top-k 40, top-p 0.9, min-p 0.05, xtc-probability 0.5, "
    "xtc-threshold 0.1, seed 1"
)


class LeaveChatError(Exception):
    """The user wants to leave; this is not a failure."""


@dataclass(frozen=True)
class SlashCommand:
    """A command of the conversation.

    Attributes:
        arguments: what may follow the name, in the notation of `/help`.
        run: does it; raises `ArgumentTypeError` if the words after the name make no sense.
        choices: words that may follow, for completion.
    """

    name: str
    arguments: str
    summary: str
    run: Callable[[Conversation, str], Reply]
    choices: tuple[str, ...] = ()
    takes_file: bool = False


def run_command(conversation: Conversation, line: str) -> Reply | None:
    """Runs the command that a line calls; None if the line is a question.

    Several lines that begin with a slash are a question unless they begin with a command's name.

    Raises:
        AkunuError: if there is no such command, its words make no sense, or it cannot be done.
        LeaveChatError: if the command is to leave.
    """
    if not line.startswith("/"):
        return None
    name, *rest = line.split(maxsplit=1)
    for command in COMMANDS:
        if name in (command.name, *_ALIASES.get(command.name, ())):
            try:
                return command.run(conversation, rest[0].strip() if rest else "")
            except ArgumentTypeError as error:
                usage = f"{command.name} {command.arguments.strip('[]')}"
                reason = str(error)
                raise InvalidRequestError(f"{reason[0].upper()}{reason[1:]}: {usage}.") from None
    if "\n" in line:
        return None
    if name == "/":
        raise InvalidRequestError("A command follows the slash; /help lists them.")
    hint = did_you_mean(name, [command.name for command in COMMANDS])
    raise InvalidRequestError(
        f"There is no command {name}; {hint or '/help lists the commands.'} "
        "To ask a question that begins with a slash, type a space before it."
    )


def _help(_: Conversation, __: str) -> Reply:
    usages = [f"{command.name} {command.arguments}".strip() for command in COMMANDS]
    width = max(map(len, usages))
    lines = [f"{usage:{width}}  {it.summary}" for usage, it in zip(usages, COMMANDS, strict=True)]
    return "\n".join([*lines, *_KEYS])


def _reset(conversation: Conversation, _: str) -> Reply:
    conversation.reset()
    return "The conversation starts again."


def _system(conversation: Conversation, rest: str) -> Reply:
    if not rest:
        return conversation.system or "There is no system message."
    conversation.set_system(None if rest == "none" else rest)
    return "The system message was removed." if rest == "none" else "The system message is set."


def _save(conversation: Conversation, rest: str) -> Reply:
    path = _file(rest)
    model = conversation.worker.loading.result().model
    saved = SavedConversation(model.name, conversation.messages, conversation.options)
    save_conversation(path, saved)
    return f"Saved {count(len(saved.messages), 'message')} to {path}."


def _load(conversation: Conversation, rest: str) -> Reply:
    saved = load_conversation(_file(rest))
    conversation.go_on_from(saved.messages)
    conversation.options = saved.options
    return (
        f"Loaded {count(len(saved.messages), 'message')} with {saved.model}; "
        f"{describe_options(saved.options)}."
    )


def _retry(conversation: Conversation, _: str) -> Reply:
    return conversation.retry()


def _setting(change: Callable[[Options, str], Options]) -> Callable[[Conversation, str], Reply]:
    """A command that changes the options, if words follow its name, and shows them."""

    def run(conversation: Conversation, rest: str) -> Reply:
        if rest:
            conversation.options = change(conversation.options, rest)
        return describe_options(conversation.options)

    return run


@_setting
def _speculate(options: Options, rest: str) -> Options:
    drafts = _on_or_off(rest)
    if drafts == (options.drafter != "none"):
        return options
    return replace(options, drafter="auto" if drafts else "none")


@_setting
def _drafter(options: Options, rest: str) -> Options:
    if rest not in USER_DRAFTERS:
        raise InvalidRequestError(
            f"There is no drafter {rest}; choose one of {', '.join(USER_DRAFTERS)}."
        )
    return replace(options, drafter=rest)


@_setting
def _num_draft_tokens(options: Options, rest: str) -> Options:
    return replace(options, num_draft_tokens=draft_tokens(rest))


@_setting
def _sampler(options: Options, rest: str) -> Options:
    return replace(options, sampling=read_sampling(rest, options.sampling))


def _sampling_field(
    name: str, read: Callable[[str], float | None]
) -> Callable[[Conversation, str], Reply]:
    """A command that changes one field of the sampling, as the option of the same name does."""

    def change(options: Options, rest: str) -> Options:
        given: dict[str, Any] = {name: read(rest)}
        return replace(options, sampling=replace(options.sampling, **given))

    return _setting(change)


def _seed_or_none(word: str) -> int | None:
    return None if word == "none" else whole_number(word)


@_setting
def _max_tokens(options: Options, rest: str) -> Options:
    limit = token_limit(rest)
    if limit == 0:
        raise ArgumentTypeError("an answer needs 1 token or more")
    return replace(options, max_tokens=limit)


def _show_drafts(conversation: Conversation, rest: str) -> Reply:
    if rest:
        conversation.show_drafts = _on_or_off(rest)
    return f"Draft tokens are {'coloured' if conversation.show_drafts else 'not marked'}."


def _stats(conversation: Conversation, _: str) -> Reply:
    if not conversation.stats:
        return "Nothing has been answered yet."
    total = Stats()
    for stats in conversation.stats:
        total.include(stats)
    last = conversation.stats[-1]
    limit = conversation.worker.loading.result().context_limit
    return "\n".join(
        [
            f"{count(len(conversation.stats), 'answer')}: {stats_line(total)}",
            f"prompts: {count(total.prompt_tokens, 'token')}, "
            f"{total.cached_tokens:,} of them cached from earlier turns",
            f"forwards: {total.target_forwards:,}, over {count(total.target_tokens, 'position')}; "
            f"draft tokens: {total.drafted:,}, {total.accepted:,} accepted",
            f"time: {total.prefill_s:.2f} s for prefill, {total.decode_s:.2f} s for decoding, "
            f"{total.draft_s:.2f} s of that for drafting",
            f"context: {last.prompt_tokens + last.generated_tokens:,} of {limit:,} tokens in use",
        ]
    )


def _quit(_: Conversation, __: str) -> Reply:
    raise LeaveChatError


def describe_options(options: Options) -> str:
    """How answers are made, in one line."""
    sampling, limit, most = options.sampling, options.max_tokens, options.num_draft_tokens
    drafts = (
        "num_draft_tokens chosen in each round"
        if most is None
        else f"up to {count(most, 'draft token')} per round"
    )
    excludes = sampling.xtc_probability > 0
    penalises = sampling.repetition_penalty != 1
    facts = [
        "greedy" if sampling.greedy else f"temp {sampling.temperature:g}",
        f"top-k {sampling.top_k}" if sampling.top_k else "",
        f"top-p {sampling.top_p:g}" if sampling.top_p < 1 else "",
        f"min-p {sampling.min_p:g}" if sampling.min_p else "",
        f"xtc {sampling.xtc_probability:g} above {sampling.xtc_threshold:g}" if excludes else "",
        "" if sampling.seed is None else f"seed {sampling.seed}",
        f"repetition penalty {sampling.repetition_penalty:g}" if penalises else "",
        f"presence penalty {sampling.presence_penalty:g}" if sampling.presence_penalty else "",
        f"frequency penalty {sampling.frequency_penalty:g}" if sampling.frequency_penalty else "",
        f"{len(sampling.logit_bias)} biased" if sampling.logit_bias else "",
        f"drafter {options.drafter}, {drafts}" if options.drafts else "no drafts",
        "exact" if options.exact else "",
        "no token limit" if limit is None else f"up to {count(limit, 'token')}",
    ]
    return " · ".join(fact for fact in facts if fact)


def read_sampling(words: str, now: Sampling) -> Sampling:
    """Reads `greedy`, or any of `temp T`, `top-k K`, `top-p P`, `min-p P`, `xtc-probability P`,
    `xtc-threshold P` and `seed N`.

    `sample` is another word for `temp`; without a number, it means a temperature of 1. The
    temperature, if there was one, and the seed stay as they are `now` unless they are named; other
    filters are off.

    Raises:
        InvalidRequestError: if the words make no sense.
    """
    if words == "greedy":
        return replace(now, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, xtc_probability=0.0)
    given: dict[str, str] = {}
    left = words.split()
    while left:
        name = left.pop(0)
        name = "temp" if name == "sample" else name
        if name not in _SAMPLER or name == "greedy":
            raise InvalidRequestError(f"There is no sampler {name} here; try {_SAMPLER_USAGE}.")
        bare = name == "temp" and (not left or left[0] in _SAMPLER)
        given[name] = "1" if bare else left.pop(0) if left else ""
    temperature = "1" if now.greedy else str(now.temperature)
    try:
        return replace(
            now,
            temperature=number(given.get("temp", temperature)),
            top_p=number(given.get("top-p", "1")),
            top_k=whole_number(given.get("top-k", "0")),
            min_p=number(given.get("min-p", "0")),
            xtc_probability=number(given.get("xtc-probability", "0")),
            xtc_threshold=number(given.get("xtc-threshold", str(DEFAULT_XTC_THRESHOLD))),
            seed=whole_number(given["seed"]) if "seed" in given else now.seed,
        )
    except ArgumentTypeError as error:
        raise InvalidRequestError(f"{error}: {_SAMPLER_USAGE}.") from None


def _file(word: str) -> Path:
    if not word:
        raise ArgumentTypeError("the name of a file is missing")
    return file_path(word)


def _on_or_off(word: str) -> bool:
    if word not in _SWITCH:
        raise ArgumentTypeError(f"{word!r} is neither on nor off")
    return word == "on"


COMMANDS: Final = (
    SlashCommand("/help", "", "this list", _help),
    SlashCommand("/reset", "", "forget the conversation, keep the system message", _reset),
    SlashCommand("/retry", "", "answer the last question again", _retry),
    SlashCommand("/system", "[TEXT|none]", "set the system message", _system, ("none",)),
    SlashCommand("/save", "FILE", "save the conversation", _save, takes_file=True),
    SlashCommand("/load", "FILE", "continue a saved conversation", _load, takes_file=True),
    SlashCommand("/max-tokens", "[N]", "maximum length of an answer; -1 sets no limit",
                 _max_tokens),
    SlashCommand("/temp", "[T]", "temperature; 0 is greedy",
                 _sampling_field("temperature", number)),
    SlashCommand("/top-p", "[P]", "sample from the most likely tokens that make up P",
                 _sampling_field("top_p", number)),
    SlashCommand("/top-k", "[K]", "sample from the K most likely tokens",
                 _sampling_field("top_k", whole_number)),
    SlashCommand("/min-p", "[P]", "ignore tokens that are relatively unlikely",
                 _sampling_field("min_p", number)),
    SlashCommand("/seed", "[N|none]", "repeat a sampled answer",
                 _sampling_field("seed", _seed_or_none), ("none",)),
    SlashCommand("/sampler", "[HOW]", "all of these: greedy, or e.g. temp 0.8 top-k 40", _sampler,
                 _SAMPLER),
    SlashCommand("/speculate", "[on|off]", "turn drafting on or off", _speculate, _SWITCH),
    SlashCommand("/drafter", "[NAME]", "choose the drafter", _drafter, USER_DRAFTERS),
    SlashCommand("/num-draft-tokens", f"[N|{PLANNED}]", "maximum of draft tokens per round",
                 _num_draft_tokens, (PLANNED,)),
    SlashCommand("/show-drafts", "[on|off]", "colour accepted draft tokens", _show_drafts, _SWITCH),
    SlashCommand("/stats", "", "tokens, forwards and time so far", _stats),
    SlashCommand("/quit", "", "leave", _quit),
)  # fmt: skip
_ALIASES: Final = {
    "/quit": ("/exit", "/bye"),
    "/help": ("/?",),
    "/reset": ("/clear",),
    "/system": ("/system-prompt",),
    "/max-tokens": ("/length",),
    "/sampler": ("/processor",),
    "/speculate": ("/speculative",),
}
_KEYS: Final = (
    "",
    "Alt-Enter, or a backslash before Enter, starts a new line; Tab completes.",
    "Ctrl-C stops an answer; Ctrl-D leaves.",
)
