"""Virtual time, and an event loop for each process on it.

One `Scheduler` has the time of the whole world, which jumps to whatever happens next. Every process
has a `ProcessLoop` of its own, an asyncio loop by its methods: the code under test asks for the
running loop and gets it. So a process can be killed (nothing of it ever runs again), paused (what
comes meanwhile waits, sockets before timers, as after a real stall), and have a clock that
disagrees with the others'.

Invariants
    Nothing depends on real time, on threads or on the order of a set: a seed is replayed exactly.
    Of a killed process not even a `finally` has an effect: its loop takes nothing any more.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.world.network import Network

START_WALL_MS = 1_700_000_000_000
CLEAN_UPS_MAX = 100  # awaits in the `finally` blocks of one task
_CONTEXT = Context()  # of handles; nothing here is told by context variables


class Scheduler:
    """What happens when. Times are seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.event_count = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, delay_s: float, work: Callable[..., Any], *arguments: Any) -> None:
        """Let something happen later."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now + delay_s, self._sequence, work, arguments))

    def run(self, for_s: float) -> None:
        """Let time pass; what is due happens in order."""
        end = self.now + for_s
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, work, arguments = heapq.heappop(events)
            self.event_count += 1
            work(*arguments)
        self.now = end

    def run_until(self, is_so: Callable[[], object], limit_s: float) -> bool:
        """Let time pass until something is so; whether it came to that."""
        end = self.now + limit_s
        while not is_so():
            if not self._events or self._events[0][0] > end:
                return False
            self.now, _, work, arguments = heapq.heappop(self._events)
            self.event_count += 1
            work(*arguments)
        return True


class ProcessClock:
    """The clocks of one machine: the monotonic one may go on or stand, the wall clock jump."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.ahead_s = 0.0
        self.wall_ahead_ms = 0
        self._latest = 0.0

    def monotonic(self) -> float:
        self._latest = max(self._latest, self._scheduler.now + self.ahead_s)
        return self._latest

    def wall_ms(self) -> int:
        return START_WALL_MS + self.wall_ahead_ms + int(self._scheduler.now * 1000)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, coro: Any, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """A future of the same kind."""

    def __init__(self, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(**options)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """A callback to come, made in a fraction of the time: a campaign has a hundred thousand."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._cancelled = False
        self._repr = self._source_traceback = None


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process, from its start to its death."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: ProcessClock,
        network: Network,
        node_id: int,
        on_turn: Callable[[], None],
        on_error: Callable[[dict[str, Any]], None],
    ) -> None:
        self.node_id = node_id
        self.is_dead = False
        self.is_paused = False
        self.process: Any = None  # what runs here, for those who watch it from below
        self._scheduler = scheduler
        self._clock = clock
        self._network = network
        self._on_turn = on_turn
        self._on_error = on_error
        self._ready: deque[asyncio.Handle] = deque()
        self._came: list[asyncio.Handle] = []  # from sockets, during a pause
        self._missed: list[asyncio.Handle] = []  # timers, during a pause
        self._turn_is_due = False
        self._numbers = itertools.count()

    # What asyncio and the code under test ask for.

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self)
        if not self.is_dead:
            self._ready.append(handle)
            self._need_turn()
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        when = self.time() + delay
        handle = asyncio.TimerHandle(when, callback, args, self, context or _CONTEXT)
        if not self.is_dead:
            self._scheduler.at(max(delay, 0.0), self._due, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = _Task(coro, next(self._numbers), loop=self, name=name)
        if self.is_dead:
            _silence(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._on_error(context)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:  # type: ignore[override]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        is_serving = options.get("start_serving", True)
        return self._network.listen(self, protocol_factory, host, port, is_serving)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self._network.connect(self, protocol_factory, port)

    # Turns.

    def arrived(self, callback: Callable[..., Any], *args: Any) -> None:
        """A socket has something: handled in the next turn, or first after a pause."""
        if self.is_dead:
            return
        handle = _Handle(callback, args, self)
        if self.is_paused:
            self._came.append(handle)
        else:
            self._ready.append(handle)
            self._need_turn()

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if self.is_dead or handle._cancelled:  # type: ignore[attr-defined]
            return
        if self.is_paused:
            self._missed.append(handle)
        else:
            self._ready.append(handle)
            self._need_turn()

    def _need_turn(self) -> None:
        if not self._turn_is_due and not self.is_paused:
            self._turn_is_due = True
            self._scheduler.at(0.0, self._turn)

    def _turn(self) -> None:
        """Run what is ready, and not what becomes so meanwhile: sockets have their turn too."""
        self._turn_is_due = False
        if self.is_dead or self.is_paused:
            return
        asyncio._set_running_loop(self)
        try:
            ready = self._ready
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:  # type: ignore[attr-defined]
                    self._call(handle)
                if self.is_dead:
                    return
        finally:
            asyncio._set_running_loop(None)
        if self._ready:
            self._need_turn()
        self._on_turn()

    def _call(self, handle: asyncio.Handle) -> None:
        try:
            handle._callback(*handle._args)  # type: ignore[attr-defined]
        except Exception as error:
            self.call_exception_handler({"exception": error, "handle": handle})

    def enter(self, work: Callable[[], Any]) -> Any:
        """Do something as this process, between two turns."""
        asyncio._set_running_loop(self)
        try:
            return work()
        finally:
            asyncio._set_running_loop(None)

    # Bad days.

    def pause(self) -> None:
        """The process stands still; its clock does not."""
        self.is_paused = True

    def resume(self) -> None:
        """It goes on: what came over sockets first, timers after that."""
        if self.is_paused and not self.is_dead:
            self.is_paused = False
            self._ready.extend((*self._came, *self._missed))
            self._came, self._missed = [], []
            self._need_turn()

    def kill(self) -> None:
        """The process ends between two instructions: nothing of it runs any more."""
        self.is_dead = True
        for waiting in (self._ready, self._came, self._missed):
            waiting.clear()
        tasks = asyncio.all_tasks(self)
        asyncio._set_running_loop(self)
        # Nobody hears what the dead complain of when their disk does not answer any more.
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for task in tasks:
                _silence(task)
        finally:
            sys.unraisablehook = hook
            asyncio._set_running_loop(None)


def _silence(task: asyncio.Task[Any]) -> None:
    """End a task of a dead process now, where it can do no harm, and not in a collection."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    for _ in range(CLEAN_UPS_MAX):
        try:
            task.get_coro().close()  # type: ignore[union-attr]
        except RuntimeError:
            continue  # It awaits something while it cleans up, and gets no answer there either.
        except BaseException:
            return
        return
