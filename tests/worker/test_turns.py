"""Turns: the steps of several engines, one at a time and the most urgent first."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event, Thread

import akunu_py
from akunu_py.machine.threads import Rank, Turns
from akunu_py.worker import EngineWorker

CHAT, URGENT = (0, True, 3), (0, False, 1)


class Steps:
    """Threads that wait for a turn, begun one after another while the turn is taken."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self._threads: list[Thread] = []

    def wait(self, name: str, rank: Callable[[], Rank], times: int = 1) -> None:
        def take() -> None:
            for _ in range(times):
                with self.turns.turn(rank):
                    self.order.append(name)

        before = self.turns.waiting
        self._threads.append(Thread(target=take))
        self._threads[-1].start()
        while self.turns.waiting == before and self._threads[-1].is_alive():
            pass

    def join(self) -> list[str]:
        for thread in self._threads:
            thread.join()
        return self.order


def test_the_most_urgent_goes_first_and_equal_ones_as_they_came() -> None:
    steps = Steps()
    with steps.turns.turn(lambda: CHAT):
        for name in ("a", "b"):
            steps.wait(name, lambda: CHAT)
        steps.wait("typed", lambda: URGENT)
        steps.wait("c", lambda: CHAT)
        assert steps.turns.contended
    assert steps.join() == ["typed", "a", "b", "c"]
    assert not steps.turns.contended


def test_a_step_that_becomes_urgent_while_it_waits_goes_first() -> None:
    steps, ranks = Steps(), {"late": CHAT}
    with steps.turns.turn(lambda: CHAT):
        steps.wait("chat", lambda: CHAT)
        steps.wait("late", lambda: ranks["late"])
        ranks["late"] = URGENT
    assert steps.join() == ["late", "chat"]


def test_ranks_that_change_all_the_time_stop_nobody() -> None:
    """Each one is asked for its rank by others, and says something else each time."""
    steps, draw = Steps(), Random(0)
    with steps.turns.turn(lambda: CHAT):
        for name in "abcd":
            steps.wait(name, lambda: (draw.randrange(9), True, 0), times=200)
    assert sorted(steps.join()) == sorted("abcd" * 200)


def test_nobody_is_passed_for_ever() -> None:
    steps = Steps()
    with steps.turns.turn(lambda: CHAT):
        steps.wait("chat", lambda: CHAT)
        for name in ("x", "y"):
            steps.wait(name, lambda: URGENT, times=20)
    assert steps.join().index("chat") == 8


def test_a_turn_ends_with_an_error() -> None:
    steps = Steps()
    try:
        with steps.turns.turn(lambda: CHAT):
            raise ValueError
    except ValueError:
        pass
    steps.wait("next", lambda: CHAT)
    assert steps.join() == ["next"]


def test_who_goes_on_is_not_passed_by_less_urgent_steps_in_between() -> None:
    steps, goes_on = Steps(), iter([True] * 5 + [False])
    with steps.turns.turn(lambda: URGENT, lambda: next(goes_on)):
        steps.wait("prompt", lambda: CHAT, times=2)
    for _ in range(5):
        with steps.turns.turn(lambda: URGENT, lambda: next(goes_on)):
            steps.order.append("typed")
    assert steps.join() == ["typed"] * 5 + ["prompt"] * 2


def test_another_engine_has_a_turn_between_two_calls(tiny_model_dir: Path) -> None:
    steps, begun, goes_on = Steps(), Event(), Event()
    worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)), turns=steps.turns)

    def hold(_: object) -> None:
        begun.set()
        goes_on.wait()

    worker.submit(hold)
    second = worker.submit(lambda _: steps.order.append("call"))
    begun.wait()
    steps.wait("other", lambda: CHAT)
    goes_on.set()
    second.result()
    assert steps.join() == ["other", "call"]
    worker.close()
