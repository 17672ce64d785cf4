"""Pool: the models that a server offers; each is loaded when a request asks for it by name.

A loaded model has its own engine and thread, and is a `Seat` here. If memory is too small for one
more, the least recently used model is unloaded once its requests have ended. Use a pool in one
event loop only.
"""

import asyncio
import gc
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from akunu_py.errors import AkunuError, InvalidRequestError, QueueFullError
from akunu_py.machine.device_memory import give_back_memory, memory_is_short
from akunu_py.machine.threads import Turns, release_thread
from akunu_py.model.library import USUAL_TOKENS, LocalModel, in_gigabytes, matches
from akunu_py.server.errors import RETRY, ApiError, NotFoundError, UnavailableError
from akunu_py.server.service import SHUTTING_DOWN, Metrics, Service
from akunu_py.server.settings import ServerSettings
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine

logger = logging.getLogger("akunu_py.server")

DEFAULT_NAME: Final = "default"
LOOK_S: Final = 2.0
"""How often the pool checks which models to unload; macOS warns some seconds before it swaps."""
_TAG: Final = ":latest"
"""The tag that Ollama's clients add to every name."""
_MOST_NAMED: Final = 8

T = TypeVar("T")
Load = Callable[[LocalModel, int], "Engine"]
"""Makes the engine of a model, on its thread, given the bytes that are free for its caches."""


@dataclass(eq=False)
class Seat:
    """A model in memory, from the first request that wants it until it is unloaded, `keep_s` after
    its last request. `nbytes`, of its weights and a usual cache, are estimated until it is loaded.
    `users` are the requests that use it or wait for it. Once `leaving` is set, no new request gets
    this seat.
    """

    model: LocalModel
    nbytes: int
    keep_s: float
    users: int = 0
    last_used: float = field(default_factory=monotonic)
    worker: EngineWorker | None = None
    service: Service | None = None
    loading: "asyncio.Task[Service] | None" = None
    leaving: "asyncio.Task[None] | None" = None
    free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun to load, so that it takes no memory yet."""
        return self.worker is None and self.loading is not None

    @property
    def is_pinned(self) -> bool:
        return self.keep_s == math.inf

    @property
    def left_s(self) -> float:
        """How many more seconds it stays loaded if no other request comes."""
        return self.keep_s if self.users else self.last_used + self.keep_s - monotonic()


class Pool:
    """Finds models by name and keeps as many of them loaded as fit into memory. `seats` are in the
    order of their requests; the `first` models are loaded at the start, and the first of them
    answers requests that name none.

    `others` returns the models that may be loaded besides, again for unknown names, on its own
    thread; `memory`, once, the bytes that all may take; `is_short`, whether the machine would soon
    swap.
    """

    def __init__(
        self,
        load: Load,
        settings: ServerSettings,
        first: Sequence[LocalModel],
        *,
        others: Callable[[], Iterable[LocalModel]] = tuple,
        memory: Callable[[], float] = lambda: math.inf,
        is_short: Callable[[], bool] = memory_is_short,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.seats: list[Seat] = []
        self.loads = self.unloads = 0
        self._load_engine = load
        self.first = tuple(first)
        self._others = others
        self._known: tuple[LocalModel, ...] = self.first
        self._aliases: dict[str, tuple[str, str]] = {}  # with the models' names, once known
        self._resolve_aliases()
        self._find_memory = memory
        self._is_short = is_short
        self._watching: asyncio.Task[None] | None = None
        self._memory: float | None = None
        self._sizes: dict[LocalModel, int] = {}  # of those that were loaded before
        self._turns = Turns()
        self._keeps_all = settings.keep_alive == math.inf
        self._one_at_a_time = asyncio.Lock()
        self._threads = ThreadPoolExecutor(1)  # the loop's own two must not wait for the disk
        self._is_stopping = False

    @property
    def services(self) -> list[Service]:
        """The services of the loaded models."""
        return [seat.service for seat in self.seats if seat.service is not None]

    @property
    def latest(self) -> Seat | None:
        """The loaded model that is in use or was used last."""
        loaded = [seat for seat in self.seats if seat.service is not None]
        return max(loaded, key=lambda seat: (seat.users > 0, seat.last_used), default=None)

    @property
    def loading(self) -> list[str]:
        """The names of the models that are loading or waiting to be loaded."""
        return [seat.model.name for seat in self.seats if seat.loading and not seat.loading.done()]

    @property
    def waiting(self) -> int:
        """How many requests wait for a model or for their turn."""
        for_models = sum(seat.users for seat in self.seats if seat.service is None)
        return for_models + sum(service.worker.queue_depth for service in self.services)

    def models(self) -> tuple[LocalModel, ...]:
        """All models that a request may name, as currently on disk."""
        known = {(model.name, model.folder): model for model in self._known}
        found: dict[str, LocalModel] = {}
        for model in (*self.first, *self._others()):
            found.setdefault(model.name, known.get((model.name, model.folder), model))
        self._known = tuple(found.values())
        self._resolve_aliases()
        return self._known

    def names_of(self, model: LocalModel) -> tuple[str, ...]:
        """The names of a model for clients: its aliases, or else its own. Answers have the
        first."""
        own = [alias for alias, name in self._aliases.values() if name == model.name]
        return tuple(own) or (model.name,)

    def _resolve_aliases(self) -> None:
        """An alias keeps its model, even if another one gets that name later."""
        for word in self.settings.aliases:
            alias, _, name = word.partition("=")
            named = matches(self._known, name) if name else list(self.first[:1])
            if len(named) == 1:
                self._aliases.setdefault(alias.casefold(), (alias, named[0].name))

    def check_aliases(self) -> None:
        """Raises an AkunuError if the model of an alias is not here, or if an alias is the name of
        another model."""
        known = self.models() if self.settings.aliases else ()
        for word in self.settings.aliases:
            alias, equals, name = word.partition("=")
            model = self.find(name) if equals else self.first[0]
            if alias in ("", DEFAULT_NAME) or any(
                other.name != model.name for other in matches(known, alias)
            ):
                raise InvalidRequestError(f"--alias {word}: {alias or 'no name'} is taken.")

    def find(self, asked: str) -> LocalModel:
        """The model that a request names, or the first one if it names none. A folder path works
        only for models that `--model` gave as one. Raises NotFoundError if there is none, or the
        name is ambiguous.
        """
        found = self._named(asked)
        if len(found) == 1:
            return found[0]
        several = " or ".join(model.name for model in found)
        why = f"it may be {several}." if found else self._offered(asked)
        raise NotFoundError(f"model '{asked}' not found: {why}", "model", quotes=True)

    def find_on_disk(self, asked: str) -> LocalModel:
        """The same, but looks at the disk if the name is unknown, which takes a while."""
        if len(self._named(asked)) != 1:
            self.models()
        return self.find(asked)

    def _named(self, asked: str) -> list[LocalModel]:
        wanted, found = asked.casefold(), list[LocalModel]()
        if wanted.removesuffix(_TAG) in ("", DEFAULT_NAME):
            return [self.first[0]]
        for called in (wanted, wanted.removesuffix(_TAG)):
            found = matches(self._known, self._aliases.get(called, ("", called))[1])
            if len(found) == 1:
                return found
        return [model for model in self.first if model.folder == Path(asked)][:1] or found

    def _offered(self, asked: str) -> str:
        names = [name for model in self._known for name in self.names_of(model)]
        ends = {name.rpartition("/")[2]: name for name in names}
        near = [ends[end] for end in get_close_matches(asked.rpartition("/")[2], ends, cutoff=0.5)]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        meant = f"; did you mean {' or '.join(near)}?" if near else "."
        return f"this server has {', '.join(names[:_MOST_NAMED])}{more}{meant}"

    def start(self) -> "asyncio.Future[list[Service]]":
        """Begins to load the models given with `--model`; the result raises the error if one cannot
        be loaded."""
        self._watching = asyncio.ensure_future(self._watch())
        seats = [self._seat_of(model) for model in self.first]
        return asyncio.gather(*(seat.loading for seat in seats if seat.loading))

    @asynccontextmanager
    async def using(
        self, asked: str, keep_s: float | None, check: Callable[[LocalModel], None]
    ) -> AsyncIterator[Seat]:
        """The seat of a model, which may still be loading: await `loaded` before using its service.
        The model stays until the block ends, and then for `keep_s` seconds. Raises NotFoundError if
        there is no such model, UnavailableError if the server is stopping, QueueFullError, or what
        `check` raises.
        """
        named = self._named(asked)
        if len(named) == 1:
            model = named[0]
        else:
            model = await self._in_thread(partial(self.find_on_disk, asked))
        check(model)
        present = self._present(model)
        if (present is None or present.service is None) and self.waiting >= self.settings.queue:
            raise QueueFullError
        seat = self._seat_of(model)
        seat.users += 1
        try:
            yield seat
            if keep_s is not None:  # of a request that was not refused
                seat.keep_s = keep_s
        finally:
            seat.users -= 1
            seat.last_used = monotonic()
            if not seat.users:
                seat.free.set()
                if seat.is_waiting and model not in self.first:  # nobody waits for it any more
                    self._begin_to_unload(seat)
                self._unload_expired()

    def stop(self) -> None:
        """Ends all jobs and accepts no more."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        for seat in self.seats:
            if seat.loading is not None:
                seat.loading.cancel()
        for service in self.services:
            service.stop()

    def close(self, timeout: float) -> None:
        """Ends the threads of all models; waits at most this many seconds for each."""
        for seat in self.seats:
            if seat.worker is not None:
                seat.worker.close(timeout)
        self._threads.submit(release_thread)
        self._threads.shutdown()

    async def unload(self, seat: Seat) -> None:
        """Unloads a model once it is loaded and its requests have ended; new requests wait until it
        is loaded again."""
        await asyncio.shield(self._begin_to_unload(seat))

    def _begin_to_unload(self, seat: Seat) -> "asyncio.Task[None]":
        if seat.leaving is None:
            seat.leaving = asyncio.ensure_future(self._unload(seat))
        return seat.leaving

    def _idle(self) -> list[Seat]:
        idle = [seat for seat in self.seats if seat.service and not (seat.users or seat.leaving)]
        return sorted((one for one in idle if not one.is_pinned), key=lambda one: one.last_used)

    def _present(self, model: LocalModel) -> Seat | None:
        seats = (seat for seat in self.seats if seat.model == model and seat.leaving is None)
        return next(seats, None)

    def _seat_of(self, model: LocalModel) -> Seat:
        if self._is_stopping:
            raise UnavailableError(SHUTTING_DOWN)
        if (present := self._present(model)) is not None:
            return present
        estimate = model.nbytes + model.cache_bytes(USUAL_TOKENS)
        nbytes = self._sizes.get(model, estimate)
        seat = Seat(model, nbytes, self.settings.keep_alive)
        self.seats.append(seat)
        seat.loading = asyncio.ensure_future(self._load(seat))
        seat.loading.add_done_callback(_note_error)
        return seat

    async def _load(self, seat: Seat) -> Service:
        model = seat.model
        try:
            async with self._one_at_a_time:
                await self._make_room(seat)
                logger.info("loading %s", model.name)
                begun, spare = monotonic(), int(min(self._spare - seat.nbytes, 1 << 62))
                seat.worker = EngineWorker(
                    lambda: self._load_engine(model, spare),
                    queue_limit=self.settings.queue,
                    parallel=self.settings.parallel,
                    turns=self._turns,
                )
                engine = await asyncio.wrap_future(seat.worker.loading)
                seat.nbytes = self._sizes[model] = _bytes_of(engine)
                self._check_size(seat)
                names = self.names_of(model)
                seat.service = Service(seat.worker, self.settings, model, names, self.metrics)
        except Exception as error:
            self.seats.remove(seat)
            if seat.worker is not None:
                logger.warning("%s did not load: %s", model.name, error)
                seat.worker.close()  # its thread is no longer needed
            raise
        self.loads += 1
        logger.info("loaded %s in %.1f s", model.name, monotonic() - begun)
        seat.last_used = monotonic()
        self._shrink()  # it may take more memory than its files
        return seat.service

    @property
    def _spare(self) -> float:
        """Bytes that no model uses."""
        assert self._memory is not None, "it is found before a model is loaded"
        return self._memory - sum(seat.nbytes for seat in self.seats if not seat.is_waiting)

    async def _make_room(self, seat: Seat) -> None:
        if self._memory is None:
            self._memory = await self._in_thread(self._find_memory)
        self._check_size(seat)
        while (lacking := seat.nbytes - self._spare) > 0:
            leaving = [one for one in self.seats if one.leaving and not one.is_waiting]
            staying = [one for one in self.seats if one.service and not one.leaving]
            # A client can keep a model loaded, but not lock others out.
            pinned = [one for one in staying if one.is_pinned] if self._keeps_all else []
            may_go = [one for one in staying if one not in pinned]
            if sum(one.nbytes for one in (*leaving, *may_go)) < lacking:
                names = " and ".join(one.model.name for one in pinned)
                raise ApiError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"{seat.model.name} needs {in_gigabytes(seat.nbytes)}, for which {names} would "
                    "have to be unloaded, but --keep-alive -1 forbids it: send a request with a "
                    "keep_alive of 0.",
                    "unavailable_error",
                    headers=RETRY,
                )
            order = sorted(may_go, key=lambda one: (one.users > 0, one.is_pinned, one.last_used))
            await self.unload((leaving or order)[0])

    def _check_size(self, seat: Seat) -> None:
        assert self._memory is not None, "it is found before a model is loaded"
        if seat.nbytes > self._memory:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"{seat.model.name} needs {in_gigabytes(seat.nbytes)} for its weights and a usual "
                f"cache, but only {in_gigabytes(self._memory)} are for models: choose one with "
                "fewer weights or bits, or see --memory.",
            )

    def _shrink(self) -> None:
        if self._memory is None:
            return
        leaving = (seat for seat in self.seats if seat.leaving and not seat.is_waiting)
        excess = -self._spare - sum(seat.nbytes for seat in leaving)
        for seat in self._idle():
            if excess > 0:
                self._begin_to_unload(seat)
                excess -= seat.nbytes

    async def _unload(self, seat: Seat) -> None:
        if seat.loading is not None:
            if seat.is_waiting and not seat.users:
                seat.loading.cancel()
            await asyncio.wait((seat.loading,))
        while seat.users:
            seat.free.clear()
            await seat.free.wait()
        worker, seat.worker, seat.service, seat.loading = seat.worker, None, None, None
        if worker is not None:
            await self._in_thread(worker.close)
            self.unloads += 1
            logger.info("unloaded %s", seat.model.name)
        del worker  # the engine goes with it
        await self._in_thread(_give_back)
        if seat in self.seats:  # not if it did not load
            self.seats.remove(seat)

    def _unload_expired(self) -> None:
        self._shrink()
        for seat in self._idle():
            if seat.left_s <= 0:
                self._begin_to_unload(seat)

    async def _watch(self) -> None:
        """Unloads models whose time is over, and frees memory before the machine swaps: first the
        caches of earlier requests, and if that is not enough, idle models."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._unload_expired()
            try:
                if await self._in_thread(self._is_short):
                    await self._give_memory_back()
            except Exception as error:  # the next check may succeed
                logger.warning("the memory check failed: %s", error)

    async def _give_memory_back(self) -> None:
        held = [
            service
            for service in self.services
            if any(slot.nbytes and not slot.busy for slot in service.engine.slots)
        ]
        if held:
            logger.warning("memory is short: emptying the caches of earlier requests")
            for service in held:
                with suppress(AkunuError):  # its queue is full, or it is closed
                    await service.call(_empty_caches)
        elif idle := self._idle():
            logger.warning("memory is short: unloading %s", idle[0].model.name)
            await self.unload(idle[0])

    async def _in_thread(self, task: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, task)


def _note_error(loading: "asyncio.Task[Service]") -> None:
    if not loading.cancelled():
        loading.exception()  # otherwise asyncio reports it if nothing waits for it any more


def _bytes_of(engine: "Engine") -> int:
    model = engine.model
    head = 0 if model.head is None else model.head.parameter_bytes
    return round(model.parameter_bytes + head + model.cache_bytes(USUAL_TOKENS))


def _empty_caches(engine: "Engine") -> None:
    engine.free_caches()
    give_back_memory()


def _give_back() -> None:
    gc.collect()  # parts of an engine refer to one another
    give_back_memory()
