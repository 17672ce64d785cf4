"""`generate`: one completion, streamed as text or printed as one JSON object."""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from akunu_py.cli.conversation import system_messages
from akunu_py.cli.loading import check_ability, load_engine
from akunu_py.cli.render import (
    UNFINISHED,
    AnswerWriter,
    origins,
    prefill_bar,
    prompt_line,
    stats_line,
    tell,
)
from akunu_py.cli.screen import read_text
from akunu_py.cli.settings import GenerateSettings
from akunu_py.events import Completion
from akunu_py.machine.device_memory import peak_memory_bytes
from akunu_py.prompt import PromptInput
from akunu_py.rounds import Finish
from akunu_py.text.fim import FillRequest

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_STANDARD_INPUT = "-"
_CUT = 4
"""The exit code of an answer that ended before its JSON did."""


def run(settings: GenerateSettings) -> int:
    """Prints the completion; notices, progress and speed go to standard error."""
    prompt = read_text() if settings.prompt == _STANDARD_INPUT else settings.prompt
    check_ability(settings.model)
    engine = load_engine(settings.model)
    for notice in engine.notices:
        tell(notice)
    completion = _complete(engine, settings, prompt)
    if settings.as_json:
        found = {
            "model": completion.model,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "prompt_tokens": completion.stats.prompt_tokens,
            "generated_tokens": completion.stats.generated_tokens,
            "finish_reason": completion.finish_reason,
            "stats": completion.stats.as_dict(),
        }
        print(json.dumps(found))
    if settings.verbose or sys.stderr.isatty():
        tell(stats_line(completion.stats, completion.finish_reason))
    if settings.verbose:
        if completion.stats.drafted:
            tell(f"accepted drafts by origin: {origins(completion.stats)}")
        tell(f"{prompt_line(completion.stats)} · peak memory {peak_memory_bytes() / 1e9:.2f} GB")
    engine.save_prompts(closing=True)
    if settings.options.grammar is not None and completion.finish_reason in UNFINISHED:
        more = "; allow more with --max-tokens" * (completion.finish_reason is Finish.LENGTH)
        tell(f"The JSON is not complete: {UNFINISHED[completion.finish_reason]}{more}.")
        return _CUT
    return 0


def _complete(engine: "Engine", settings: GenerateSettings, prompt: str) -> Completion:
    asked: PromptInput = prompt
    options = replace(settings.options, reports_progress=True)
    if settings.as_question:
        tokenizer = engine.tokenizer
        said = [*system_messages(settings.system_prompt), {"role": "user", "content": prompt}]
        asked = tokenizer.encode(tokenizer.render_chat(said, open_answer=True))
        asked += tokenizer.encode_plain(settings.prefill_response or "")
        if not settings.prefill_response:
            options = replace(options, reasoning=tokenizer.reasoning)
    elif settings.suffix is not None:
        asked = FillRequest(prompt, settings.suffix)
    completion = Completion(engine.model.name)
    writer = AnswerWriter(sys.stdout, show_drafts=settings.show_drafts)
    bar = prefill_bar(sys.stderr)
    try:
        for event in engine.stream(asked, options):
            if event.prompt_done is not None:
                bar(event.prompt_done, event.stats.prompt_tokens)
                continue
            bar.close()
            completion.add(event)
            if not settings.as_json:
                writer.write(event.pieces)
    finally:
        bar.close()
    if not settings.as_json:
        writer.end_line()
    return completion
