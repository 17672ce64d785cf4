"""Who may use an engine: not what it calls itself, no other thread, and no forked child."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import akunu_py
from akunu_py import Options
from akunu_py.drafting.base import Draft, NoDrafter
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError

USES: list[Callable[[Engine], object]] = [
    lambda engine: engine.generate("a"),
    lambda engine: engine.stream("a"),
    lambda engine: engine.generate_batch(["a"]),
    lambda engine: engine.reset(),
    lambda engine: engine.add_drafter("none of mine", lambda _: NoDrafter()),
    lambda engine: engine.save_prompts(),
]


class Calling(NoDrafter):
    """Calls something once for each proposal."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def propose(self, limit: int) -> Draft:
        self._call()
        return super().propose(limit)


@pytest.mark.parametrize("use", USES)
def test_what_the_engine_calls_cannot_use_it(
    engine: Engine, use: Callable[[Engine], object]
) -> None:
    engine.add_drafter("calling", lambda _: Calling(lambda: use(engine)))
    with pytest.raises(InvalidRequestError, match="so functions that it calls"):
        list(engine.stream("a", Options(drafter="calling")))
    assert engine.generate("a", Options(3)).stats.generated_tokens == 3


@pytest.mark.parametrize("use", USES)
def test_other_threads_are_refused(engine: Engine, use: Callable[[Engine], object]) -> None:
    with ThreadPoolExecutor() as threads:
        begun = engine.stream("a", Options(3))
        for call in (partial(use, engine), partial(next, begun)):
            with pytest.raises(InvalidRequestError, match="only on the thread that loaded it"):
                threads.submit(call).result()
    assert engine.generate("a", Options(3)).stats.generated_tokens == 3


def test_an_answer_goes_on_where_it_may_be_read(engine: Engine) -> None:
    alone = engine.generate("a", Options(6, drafter="none")).token_ids
    reads: list[Callable[[], object]] = []
    engine.add_drafter("reading", lambda _: Calling(lambda: [read() for read in reads]))
    answer = engine.stream("a", Options(6, drafter="reading"))
    with ThreadPoolExecutor() as threads:
        calls: list[Callable[[], object]] = [partial(next, answer), answer.close]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="only on the thread that loaded it"):
                threads.submit(call).result()
            next(answer)
    reads.append(partial(next, answer))
    with pytest.raises(InvalidRequestError, match="so functions that it calls"):
        next(answer)
    answer = engine.stream("a", Options(6, drafter="none"))
    with ThreadPoolExecutor() as threads:
        assert threads.submit(answer.close).exception() is not None
    assert [token for event in answer for token in event.tokens] == alone
    assert answer.completion.finish_reason == "length"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forked children")
def test_forked_children_are_refused(engine: Engine, tiny_model_dir: Path) -> None:
    uses: list[Callable[[Engine], object]] = [*USES, lambda _: akunu_py.load(str(tiny_model_dir))]
    child = os.fork()
    if child == 0:
        refused = 0
        for use in uses:
            try:
                use(engine)
            except InvalidRequestError as error:
                refused += "forked child" in str(error)
        os._exit(len(uses) - refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
