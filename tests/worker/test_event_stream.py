"""Events pass from one thread to another, or to an event loop."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from akunu_py.events import Event, EventStream
from akunu_py.rounds import Finish, Round, Stats

FIRST = Event(Round((1,)), (), Stats())
LAST = Event(Round((2,), finish=Finish.EOS), (), Stats())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def full_stream(error: BaseException | None = None) -> EventStream:
    events = EventStream()
    events.put(FIRST)
    events.put(LAST)
    events.end(error)
    return events


def test_a_thread_reads_each_event_once() -> None:
    events = full_stream()
    assert (events.last, events.finished) == (LAST, True)
    assert list(events) == [FIRST, LAST]
    assert list(events) == []


def test_an_error_comes_after_the_events_before_it() -> None:
    events = full_stream(ValueError("broken"))
    assert [next(events), next(events)] == [FIRST, LAST]
    with pytest.raises(ValueError, match="broken"):
        next(events)
    assert list(events) == []


def nothing() -> None:
    pass


@contextmanager
def counted_wake_ups() -> Iterator[Callable[[], int]]:
    """Counts how often another thread wakes the running event loop."""
    loop = asyncio.get_running_loop()
    wake, count = loop.call_soon_threadsafe, 0

    def counted(*arguments: object) -> object:
        nonlocal count
        count += 1
        return wake(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", counted)
        yield lambda: count


@pytest.mark.anyio
async def test_an_event_loop_reads_what_came_before_it_attached_and_after() -> None:
    events = EventStream()
    events.put(FIRST)
    events.attach(nothing)
    assert await anext(events) == FIRST
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done()
    events.put(LAST)
    events.end()
    assert await waiting == LAST
    assert [event async for event in events] == []
    assert [event async for event in events] == []


@pytest.mark.anyio
async def test_an_event_loop_gets_an_error_after_the_events() -> None:
    events = full_stream(ValueError("broken"))
    events.attach(nothing)
    assert [await anext(events), await anext(events)] == [FIRST, LAST]
    with pytest.raises(ValueError, match="broken"):
        await anext(events)


@pytest.mark.anyio
async def test_a_batch_of_events_wakes_the_event_loop_once() -> None:
    with counted_wake_ups() as wake_ups:
        events = EventStream()
        events.attach(nothing)
        assert wake_ups() == 1
        await asyncio.sleep(0)
        events.put(FIRST)
        events.put(LAST)
        events.end()
        assert wake_ups() == 2
        assert [event async for event in events] == [FIRST, LAST]


@pytest.mark.anyio
async def test_an_event_loop_may_wait_for_the_end() -> None:
    with counted_wake_ups() as wake_ups:
        events = EventStream()
        events.attach(nothing, end_only=True)
        events.put(FIRST)
        events.put(LAST)
        assert wake_ups() == 0
        assert events.last is LAST
        events.end()
        assert wake_ups() == 1
        assert [event async for event in events] == [FIRST, LAST]


@pytest.mark.parametrize("end_only", [False, True])
@pytest.mark.anyio
async def test_the_end_is_reported_once_even_if_the_events_are_not_read(end_only: bool) -> None:
    ends: list[None] = []
    events = full_stream()
    events.attach(lambda: ends.append(None), end_only=end_only)
    events.put(LAST)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(ends) == 1


@pytest.mark.anyio
async def test_aborting_raises_immediately_and_cancels() -> None:
    cancelled: list[None] = []
    events = EventStream(lambda: cancelled.append(None))
    events.attach(nothing)
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    events.abort(ValueError("replaced"))
    with pytest.raises(ValueError, match="replaced"):
        await waiting
    events.put(LAST)
    with pytest.raises(ValueError, match="replaced"):
        await anext(events)
    assert (events.cancelled, len(cancelled)) == (True, 1)


def test_a_closed_event_loop_cancels_the_request() -> None:
    async def attach() -> EventStream:
        events = EventStream()
        events.attach(nothing)
        await asyncio.sleep(0)
        return events

    events = asyncio.run(attach())
    assert not events.cancelled
    events.put(FIRST)
    assert events.cancelled
    events.end()
