"""Slash commands: lines that begin with `/` and act on a conversation.

A command takes the conversation and the words after its name, and returns a text to show or a turn
to answer. If it raises an `AkunuError`, it has changed nothing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Final

from akunu_py.cli.conversation import (
    Conversation,
    SavedConversation,
    Turn,
    load_conversation,
    save_conversation,
)
from akunu_py.cli.render import count, origins, stats_line
from akunu_py.cli.settings import DRAFT_COLOURS, check_xtc
from akunu_py.edits.edit import apply_answer
from akunu_py.edits.growing import diff_of
from akunu_py.edits.parts import Part
from akunu_py.edits.reading import WHOLE, question
from akunu_py.edits.text_file import TextFile
from akunu_py.errors import EditError, InvalidRequestError
from akunu_py.option_field import Option, did_you_mean, options_in
from akunu_py.option_words import UnreadableWordError, file_path, on_or_off
from akunu_py.options import Options, Sampling
from akunu_py.rounds import Stats

Reply = str | Turn

_SWITCH: Final = ("on", "off")
_OFF: Final = ("off", "none")
_ANYWAY: Final = "anyway"
_WIDTH: Final = 80
_SAMPLING: Final = {
    option.word: option
    for option in options_in(Sampling).values()
    if option.flag and not option.repeated
}
"""The sampling options that a conversation can change, by their flags."""
_OPTIONS: Final = options_in(Options)


class LeaveChatError(Exception):
    """The user wants to leave; this is not a failure."""


@dataclass(frozen=True)
class SlashCommand:
    """A slash command.

    `arguments` shows what may follow the name; `choices` are offered as completions. `run` raises
    an `UnreadableWordError` if it cannot read the words.
    """

    name: str
    arguments: str
    summary: str
    run: Callable[[Conversation, str], Reply]
    choices: tuple[str, ...] = ()
    takes_file: bool = False


def run_command(conversation: Conversation, line: str) -> Reply | None:
    """Runs the command on a line; None if the line is a question. Text of several lines is a
    question unless it begins with the name of a command. `LeaveChatError` ends the chat.
    """
    if not line.startswith("/"):
        return None
    name, *rest = line.split(maxsplit=1)
    for command in COMMANDS:
        if name in (command.name, *_ALIASES.get(command.name, ())):
            if rest and not command.arguments:
                raise InvalidRequestError(f"{name} takes no argument; type it alone.")
            try:
                return command.run(conversation, rest[0].strip() if rest else "")
            except UnreadableWordError as error:
                usage = re.sub(r"[\[\]]", "", f"{command.name} {command.arguments}")
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
    listed = [it for it in COMMANDS if it.name.removeprefix("/") not in _SAMPLING]
    usages = [f"{it.name} {it.arguments}".strip() for it in listed]
    columns = min(_WIDTH, get_terminal_size().columns)
    width = max(map(len, usages))
    indent = " " * (width + 2 if columns > 2 * width else 4)
    lines = [
        fill(f"{usage:{len(indent) - 2}}  {it.summary}", columns, subsequent_indent=indent)
        for usage, it in zip(usages, listed, strict=True)
    ]
    settings = ", ".join(f"/{name}" for name in _SAMPLING)
    each = f"Options of the sampler, each with a value or off, e.g. /temp 0.8: {settings}."
    lines += [fill(line, columns, break_on_hyphens=False) for line in ("", each, *_KEYS)]
    return "\n".join(lines)


def _reset(conversation: Conversation, _: str) -> Reply:
    conversation.reset()
    return "The conversation starts over."


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


def _edit(conversation: Conversation, rest: str) -> Reply:
    name, _, instruction = rest.partition(" ")
    if not instruction.strip():
        raise UnreadableWordError("the file or what to change is missing")
    conversation.edited = file = TextFile.read(_file(name))
    text = Part.of(file.text, 0, len(file.text)).text
    return conversation.ask(question(text, instruction, name, WHOLE)[-1]["content"])


def _apply(conversation: Conversation, rest: str) -> Reply:
    first, _, name = rest.partition(" ")
    rest = name.strip() if first == _ANYWAY else rest
    file = TextFile.read(_file(rest)) if rest else conversation.edited
    if file is None:
        raise InvalidRequestError("It is not clear which file to write; use /apply FILE.")
    asked, answer = conversation.last_answer()
    instruction = asked.partition("\n```")[0]  # what follows is the file, which says nothing
    new, doubt = apply_answer(file.name, file.text, answer, instruction)
    doubt = doubt or conversation.unsure
    if doubt and first != _ANYWAY:
        raise EditError(f"{doubt} It was not applied; `/apply {_ANYWAY}` does that.")
    file.write(new)
    conversation.edited = TextFile.read(Path(file.name))
    return f"{diff_of(file.text, new, file.name)}{file.name} was written."


def _speculate(conversation: Conversation, rest: str) -> Reply:
    options = conversation.options
    if rest and on_or_off(rest) != options.drafts:
        # With a maximum of 0 draft tokens, nothing would be drafted.
        most, drafter = options.num_draft_tokens or None, "none" if options.drafts else "auto"
        conversation.options = replace(options, drafter=drafter, num_draft_tokens=most)
    return describe_options(conversation.options)


def _option_command(option: Option, *, samples: bool = False) -> "SlashCommand":
    def run(conversation: Conversation, rest: str) -> Reply:
        if rest:
            value = option.default if samples and rest in _OFF else option.read_word(rest)
            changed = replace(conversation.options, **{option.name: value})
            if samples and value != option.default:
                check_xtc(changed)
            if changed.max_tokens == 0:
                raise UnreadableWordError("an answer needs 1 token or more")
            if changed.drafter == "model":
                conversation.worker.loading.result().speculation.required_draft_model()
            conversation.options = changed
        return describe_options(conversation.options)

    choices = _OFF if samples else _SWITCH if option.is_switch else option.choices or ()
    words = "on|off" if option.is_switch else f"{option.metavar}{'|off' if samples else ''}"
    return SlashCommand(f"/{option.word}", f"[{words}]", option.help, run, choices)


def _show_drafts(conversation: Conversation, rest: str) -> Reply:
    if rest:
        conversation.show_drafts = on_or_off(rest)
    if conversation.show_drafts:
        return f"Draft tokens are coloured: {DRAFT_COLOURS}."
    return "Draft tokens are not marked; `/show-drafts on` colours them."


def _stats(conversation: Conversation, _: str) -> Reply:
    if not conversation.stats:
        return "There is no answer yet."
    total = Stats()
    for stats in conversation.stats:
        total.include(stats)
    last = conversation.stats[-1]
    engine = conversation.worker.loading.result()
    limit = engine.context_limit
    return "\n".join(
        [
            f"{count(len(conversation.stats), 'answer')}: {stats_line(total)}",
            f"prompts: {count(total.prompt_tokens, 'token')}, "
            f"{total.cached_tokens:,} of them cached from earlier turns",
            f"forward passes: {total.target_forwards:,}, "
            f"over {count(total.target_tokens, 'position')}; "
            f"draft tokens: {total.drafted:,}, {total.accepted:,} accepted"
            + (f" ({origins(total)})" if total.drafts else ""),
            f"time: {total.prefill_s:.2f} s for prefill, {total.decode_s:.2f} s for decoding, "
            f"{total.draft_s:.2f} s of that for drafting",
            f"context: {last.prompt_tokens + last.generated_tokens:,} of {limit:,} tokens in use",
            f"answers are {engine.costs.exactness(conversation.options)}",
        ]
    )


def _quit(_: Conversation, __: str) -> Reply:
    raise LeaveChatError


def describe_options(options: Options) -> str:
    """The options of answers, in one line."""
    limit, most = options.max_tokens, options.num_draft_tokens
    drafts = (
        "num_draft_tokens chosen in each round"
        if most is None
        else f"up to {count(most, 'draft token')} per round"
    )
    facts = [
        "greedy" if options.greedy else f"temp {options.temperature:g}",
        *(
            f"{name} {value}"
            for name, option in _SAMPLING.items()
            if name != "temp" and (value := getattr(options, option.name)) != option.default
        ),
        f"{len(options.logit_bias)} biased" if options.logit_bias else "",
        f"drafter {options.drafter}, {drafts}" if options.drafts else "no drafts",
        {True: "exact", False: "near-ties may differ", None: ""}[options.exact],
        "no token limit" if limit is None else f"up to {count(limit, 'token')}",
    ]
    return " · ".join(fact for fact in facts if fact)


def _file(word: str) -> Path:
    if not word:
        raise UnreadableWordError("the name of a file is missing")
    return file_path(word)


COMMANDS: Final = (
    SlashCommand("/help", "", "this list", _help),
    SlashCommand("/reset", "", "forget the conversation, keep the system message", _reset),
    SlashCommand("/retry", "", "answer the last question again", _retry),
    SlashCommand("/edit", "FILE INSTRUCTION", "ask for an edit of a file", _edit, takes_file=True),
    SlashCommand("/apply", "[anyway] [FILE]", "write the last answer's code to the file", _apply,
                 (_ANYWAY,), takes_file=True),
    SlashCommand("/system", "[TEXT|none]", "set the system message", _system, ("none",)),
    SlashCommand("/save", "FILE", "save the conversation", _save, takes_file=True),
    SlashCommand("/load", "FILE", "continue a saved conversation", _load, takes_file=True),
    _option_command(_OPTIONS["max_tokens"]),
    *(_option_command(option, samples=True) for option in _SAMPLING.values()),
    SlashCommand("/speculate", "[on|off]", "turn drafting on or off", _speculate, _SWITCH),
    _option_command(_OPTIONS["drafter"]),
    _option_command(_OPTIONS["num_draft_tokens"]),
    _option_command(_OPTIONS["exact"]),
    SlashCommand("/show-drafts", "[on|off]", "colour accepted draft tokens", _show_drafts, _SWITCH),
    SlashCommand("/stats", "", "tokens, forward passes and time so far", _stats),
    SlashCommand("/quit", "", "leave", _quit),
)  # fmt: skip
_ALIASES: Final = {
    "/quit": ("/exit", "/bye"),
    "/help": ("/?",),
    "/reset": ("/clear",),
    "/system": ("/system-prompt",),
    "/max-tokens": ("/length",),
    "/speculate": ("/speculative",),
}
_KEYS: Final = (
    "Alt-Enter, or a backslash before Enter, starts a new line; Tab completes.",
    "Ctrl-C stops an answer; Ctrl-D or `exit` leaves. In a pipe, errors end the chat.",
)
