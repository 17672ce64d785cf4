"""Events handed from one thread to another."""

import pytest

from akunu_py.request import Event
from akunu_py.stats import Finish, Round, Stats
from akunu_py.worker.event_stream import EventStream

FIRST = Event(Round((1,)), (), Stats())
LAST = Event(Round((2,), finish=Finish.EOS), (), Stats())


def test_taking_never_waits_and_brings_each_event_once() -> None:
    events = EventStream()
    assert events.take() == []
    events.put(FIRST)
    assert events.take() == [FIRST]
    events.put(LAST)
    events.end()
    assert (events.take(), events.ended, events.error) == ([LAST], True, None)
    assert events.take() == list(events) == []


def test_an_error_comes_after_the_events_before_it() -> None:
    events = EventStream()
    events.put(FIRST)
    events.end(ValueError("broken"))
    assert events.take() == [FIRST]
    assert events.ended
    assert str(events.error) == "broken"


def test_iterating_raises_the_error() -> None:
    events = EventStream()
    events.put(FIRST)
    events.end(ValueError("broken"))
    assert next(events) is FIRST
    with pytest.raises(ValueError, match="broken"):
        next(events)
    assert list(events) == []


def test_a_listener_hears_of_what_came_before_it_and_of_all_that_follows() -> None:
    events = EventStream()
    events.put(FIRST)
    heard: list[int] = []
    events.listen(lambda: heard.append(len(events.take())))
    events.put(LAST)
    events.end()
    assert heard == [1, 1, 0]
    assert events.ended


def test_a_listener_is_told_once_of_what_it_has_not_taken() -> None:
    events = EventStream()
    told: list[None] = []
    events.listen(lambda: told.append(None))
    events.put(FIRST)
    events.put(LAST)
    events.end()
    assert len(told) == 1
    assert events.take() == [FIRST, LAST]
    assert events.ended


def test_a_listener_may_wait_for_the_end() -> None:
    events = EventStream()
    heard: list[int] = []
    events.listen(lambda: heard.append(len(events.take())), end_only=True)
    events.put(FIRST)
    events.put(LAST)
    assert heard == [0]
    events.end()
    assert heard == [0, 2]
    assert events.ended


def test_who_waits_for_the_end_may_look_before_it() -> None:
    events = EventStream()
    told: list[None] = []
    events.listen(lambda: told.append(None), end_only=True)
    events.put(FIRST)
    assert events.take() == [FIRST]
    events.put(LAST)
    assert len(told) == 1
    events.end()
    assert len(told) == 2
    assert events.take() == [LAST]
