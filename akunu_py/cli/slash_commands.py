"""Slash commands: what a line that begins with `/` does to a conversation.

A command takes the conversation and the words behind its name, and answers with a text to show, or
with a turn to receive. It raises an `AkunuError` where the words make no sense, and changes nothing
then.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from akunu_py.cli.conversation import Conversation, Turn
from akunu_py.cli.conversation_file import ConversationFile, SavedConversation
from akunu_py.cli.option_words import (
    AS_MANY_AS_PAY,
    PROCESSORS,
    SWITCH,
    describe_options,
    read_sampling,
    read_switch,
    read_whole_number,
)
from akunu_py.cli.report import count, stats_line
from akunu_py.cli.settings import token_limit
from akunu_py.drafting import DRAFTER_NAMES, MODEL_DRAFTER
from akunu_py.errors import InvalidRequestError
from akunu_py.stats import Stats


class LeaveChatError(Exception):
    """The user wants to leave; not an error of anybody's."""


Reply = str | Turn


@dataclass(frozen=True)
class SlashCommand:
    """A command of the conversation.

    Attributes:
        name: with its slash.
        arguments: how to write what follows the name.
        summary: what it does, in a few words.
        run: does it.
        choices: words that may follow; for completion.
        takes_file: whether a path follows.
    """

    name: str
    arguments: str
    summary: str
    run: Callable[[Conversation, str], Reply]
    choices: tuple[str, ...] = ()
    takes_file: bool = False


def find_command(line: str) -> SlashCommand | None:
    """The command that a line calls; None where the line is a question.

    Several lines are a question even if they begin with a slash, unless that calls a command.

    Raises:
        InvalidRequestError: if there is no such command; the text suggests one.
    """
    if not line.startswith("/"):
        return None
    name = line.split(maxsplit=1)[0]
    for command in COMMANDS:
        if name in (command.name, *_ALIASES.get(command.name, ())):
            return command
    if "\n" in line:
        return None
    if name == "/":
        raise InvalidRequestError("A command follows the slash; /help lists them.")
    close = get_close_matches(name, [command.name for command in COMMANDS], n=1)
    remedy = f"did you mean {close[0]}?" if close else "/help lists the commands."
    raise InvalidRequestError(
        f"There is no command {name}; {remedy} A space before the slash makes it a question."
    )


def run_command(command: SlashCommand, conversation: Conversation, line: str) -> Reply:
    """Runs the command that a line calls.

    Raises:
        AkunuError: if what follows its name makes no sense, or cannot be done.
        LeaveChatError: if it is to leave.
    """
    _, *rest = line.split(maxsplit=1)
    return command.run(conversation, rest[0].strip() if rest else "")


def _help(_: Conversation, __: str) -> Reply:
    usages = [f"{command.name} {command.arguments}".strip() for command in COMMANDS]
    width = max(map(len, usages))
    lines = [f"{usage:{width}}  {it.summary}" for usage, it in zip(usages, COMMANDS, strict=True)]
    return "\n".join([*lines, *_KEYS])


def _reset(conversation: Conversation, _: str) -> Reply:
    conversation.reset()
    return "The conversation begins afresh."


def _system(conversation: Conversation, rest: str) -> Reply:
    if not rest:
        return conversation.system or "There is no system message."
    conversation.set_system(None if rest == "none" else rest)
    return "The system message is gone." if rest == "none" else "The system message is set."


def _save(conversation: Conversation, rest: str) -> Reply:
    file = ConversationFile(_required(rest, "/save FILE"))
    model = conversation.worker.call(lambda engine: engine.model.name)
    file.save(SavedConversation(model, conversation.messages, conversation.options))
    return f"Saved {count(len(conversation.messages), 'message')} to {file.path}."


def _load(conversation: Conversation, rest: str) -> Reply:
    file = ConversationFile(_required(rest, "/load FILE"))
    saved = file.load()
    conversation.go_on_from(saved.messages)
    conversation.options = saved.options
    return (
        f"Loaded {count(len(saved.messages), 'message')} with {saved.model}; "
        f"{describe_options(saved.options)}."
    )


def _retry(conversation: Conversation, _: str) -> Reply:
    return conversation.retry()


def _speculative(conversation: Conversation, rest: str) -> Reply:
    options = conversation.options
    if rest:
        name = "none" if not read_switch(rest, "/speculative on|off") else "auto"
        if (name == "none") != (options.drafter == "none"):
            conversation.options = replace(options, drafter=name)
    return describe_options(conversation.options)


def _drafter(conversation: Conversation, rest: str) -> Reply:
    if rest:
        if rest not in _DRAFTERS:
            raise InvalidRequestError(
                f"There is no drafter {rest}; choose one of {', '.join(_DRAFTERS)}."
            )
        conversation.options = replace(conversation.options, drafter=rest)
    return describe_options(conversation.options)


def _gamma(conversation: Conversation, rest: str) -> Reply:
    if rest:
        drafts = None if rest == AS_MANY_AS_PAY else read_whole_number(rest, "/gamma N|auto")
        conversation.options = replace(conversation.options, num_draft_tokens=drafts)
    return describe_options(conversation.options)


def _processor(conversation: Conversation, rest: str) -> Reply:
    if rest:
        sampling = read_sampling(rest, conversation.options.sampling)
        conversation.options = replace(conversation.options, sampling=sampling)
    return describe_options(conversation.options)


def _length(conversation: Conversation, rest: str) -> Reply:
    if rest:
        limit = token_limit(read_whole_number(rest, "/length N"))
        conversation.options = replace(conversation.options, max_tokens=limit)
    return describe_options(conversation.options)


def _show_drafts(conversation: Conversation, rest: str) -> Reply:
    if rest:
        conversation.show_drafts = read_switch(rest, "/show-drafts on|off")
    return f"Drafted tokens are {'coloured' if conversation.show_drafts else 'not marked'}."


def _stats(conversation: Conversation, _: str) -> Reply:
    if not conversation.stats:
        return "Nothing has been answered yet."
    total = Stats()
    for stats in conversation.stats:
        total.include(stats)
    last = conversation.stats[-1]
    limit = conversation.worker.call(lambda engine: engine.context_limit)
    return "\n".join(
        [
            f"{count(len(conversation.stats), 'answer')}: {stats_line(total)}",
            f"prompts: {count(total.prompt_tokens, 'token')}, "
            f"{total.cached_tokens:,} of them cached since the turn before",
            f"forwards: {total.target_forwards:,}, over {count(total.target_tokens, 'position')}; "
            f"drafts: {total.drafted:,}, {total.accepted:,} accepted",
            f"time: {total.prefill_s:.2f} s reading, {total.decode_s:.2f} s writing, "
            f"{total.draft_s:.2f} s of it drafting",
            f"context: {last.prompt_tokens + last.generated_tokens:,} of {limit:,} tokens in use",
        ]
    )


def _required(rest: str, usage: str) -> str:
    if not rest:
        raise InvalidRequestError(f"Something is missing: {usage}.")
    return rest


def _quit(_: Conversation, __: str) -> Reply:
    raise LeaveChatError


_DRAFTERS: Final = (*DRAFTER_NAMES, MODEL_DRAFTER)
COMMANDS: Final = (
    SlashCommand("/help", "", "this list", _help),
    SlashCommand("/reset", "", "begin afresh, with the same system message", _reset),
    SlashCommand("/retry", "", "answer the last question again", _retry),
    SlashCommand("/system", "[TEXT|none]", "set the system message", _system, ("none",)),
    SlashCommand("/save", "FILE", "save the conversation", _save, takes_file=True),
    SlashCommand("/load", "FILE", "go on with a saved conversation", _load, takes_file=True),
    SlashCommand("/length", "[N]", "tokens an answer may have; -1 sets no limit", _length),
    SlashCommand("/processor", "[HOW]", "greedy, or for example sample 0.8 top-k 40 top-p 0.9",
                 _processor, PROCESSORS),
    SlashCommand("/speculative", "[on|off]", "whether to draft", _speculative, SWITCH),
    SlashCommand("/drafter", "[NAME]", "who drafts", _drafter, _DRAFTERS),
    SlashCommand("/gamma", "[N|auto]", "how many drafts a forward verifies", _gamma,
                 (AS_MANY_AS_PAY,)),
    SlashCommand("/show-drafts", "[on|off]", "colour drafted tokens", _show_drafts, SWITCH),
    SlashCommand("/stats", "", "what the conversation took so far", _stats),
    SlashCommand("/quit", "", "leave", _quit),
)  # fmt: skip
_ALIASES: Final = {"/quit": ("/exit", "/bye"), "/help": ("/?",), "/reset": ("/clear",)}
_KEYS: Final = (
    "",
    "Alt-Enter, or a backslash at a line's end, begins a new line; Tab completes.",
    "Ctrl-C stops an answer; Ctrl-D leaves.",
)
