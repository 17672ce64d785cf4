"""ShortFirst: short bodies go before long ones, and nobody's turn is lost."""

import asyncio
from threading import Event

import pytest

from akunu_py.server.short_first import ShortFirst

LONG = 1 << 20


def test_short_bodies_are_read_before_long_ones_that_came_just_now() -> None:
    done, held = list[str](), Event()

    async def main() -> None:
        readers = ShortFirst()

        async def read(name: str, nbytes: int) -> None:
            def note() -> None:
                held.wait()
                done.append(name)

            await readers.run(readers.place(nbytes), note)

        first = asyncio.create_task(read("first", LONG))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(read("long", LONG)) for _ in range(5)]
        rest.append(asyncio.create_task(read("short", 1)))
        await asyncio.sleep(0)
        held.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert done == ["first", "short"] + ["long"] * 5


@pytest.mark.parametrize("fails", [False, True])
def test_who_leaves_or_fails_hands_the_turn_over(*, fails: bool) -> None:
    async def main() -> str:
        readers, held = ShortFirst(), Event()
        running = asyncio.create_task(readers.run(0.0, held.wait))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(readers.run(0.0, lambda: int("x"))) for _ in range(2)]
        await asyncio.sleep(0)
        for task in () if fails else waiting:
            task.cancel()
        held.set()
        ended = await asyncio.gather(running, *waiting, return_exceptions=True)
        wanted = ValueError if fails else asyncio.CancelledError
        assert all(isinstance(one, wanted) for one in ended[1:])
        return await asyncio.wait_for(readers.run(0.0, lambda: "read"), 10)

    assert asyncio.run(main()) == "read"
