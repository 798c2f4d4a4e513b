"""Simulated hosts in virtual time: all tasks of a host stop at their next await while it is paused, and for ever once
it is killed.

A task belongs to the host of the context in which it was made.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

_HERE: ContextVar[Host | None] = ContextVar("host", default=None)


def current_host() -> Host | None:
    """Return the host of the task that runs; None if it is of the simulation itself."""
    return _HERE.get()


class Host:
    """A machine or process of its own. `on_change` is called after each pause, resumption and kill."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.dead = False
        self.on_change: list[Callable[[], None]] = []
        self._resumed: list[asyncio.Future[None]] = []

    def pause(self) -> None:
        self.paused = True
        self._changed()

    def resume(self) -> None:
        self.paused = False
        waiting, self._resumed = self._resumed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self._changed()

    def kill(self) -> None:
        self.dead = self.paused = True
        self._changed()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine, and all tasks that it makes, on this host."""
        token = _HERE.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _HERE.reset(token)

    def _changed(self) -> None:
        for call in list(self.on_change):
            call()

    def resumption(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._resumed.append(future)
        return future


def install_hosts() -> None:
    """Make the running loop gate each new task by its host, until the task that calls this is done."""
    world = asyncio.current_task()
    if world is None:
        raise RuntimeError("call this in a task")
    asyncio.get_running_loop().set_task_factory(partial(_gated_task, world))


def _gated_task(
    world: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, work: Any, **extra: Any
) -> asyncio.Task[Any]:
    context = extra.get("context")
    host = _HERE.get() if context is None else context.get(_HERE)
    return asyncio.Task(work if host is None else _gated(work, host, world), loop=loop, **extra)


@types.coroutine
def _gated(work: Coroutine[Any, Any, Any], host: Host, world: asyncio.Task[Any]) -> Generator[Any, Any, Any]:
    """Run the coroutine, one step at a time, while its host is neither paused nor dead."""
    value: Any = None
    error: BaseException | None = None
    while True:
        while host.paused:
            if world.done():
                return _discard(work)
            try:
                yield from host.resumption()
            except asyncio.CancelledError as cancelled:
                error = cancelled
        try:
            if error is not None:
                raised, error = error, None
                waited_for = work.throw(raised)
            else:
                waited_for = work.send(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield waited_for
        except BaseException as raised_here:
            value, error = None, raised_here


def _discard(work: Coroutine[Any, Any, Any]) -> None:
    """Drop what a dead host had under way when its world ends. Its clean-up means nothing any more."""
    with suppress(BaseException):
        work.close()
