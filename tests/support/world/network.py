"""Simulated hosts in virtual time, and the network between them.

All tasks of a host stop at their next await while it is paused, and for ever once it is killed, and so do the product's
callbacks (`call_soon`, `call_later`). A task or a callback belongs to the host of the context in which it was made.

The network is ports.Transport with latency, partitions and refusals. Frames travel in order. Between hosts that are cut
off from each other, and to a paused host, they are kept and arrive when the cut or the pause is over, as TCP repeats
them. A killed host's connections break at the other end, unless the host is cut off or was killed silently (the machine
is gone, not the process).
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from itertools import count
from random import Random
from typing import Any

from dispatcher.model.errors import ConnectionLost
from dispatcher.ports import Connection

_HERE: ContextVar[Host | None] = ContextVar("host", default=None)


_OF_HOSTS = ("dispatcher.", "gpu_worker.", "functions.", "tests.support.world.storm.nodes")


def at_home(callback: Callable[..., Any], context: Context | None) -> Callable[..., Any]:
    """Return the callback as its host runs it: while it is neither paused nor dead.

    asyncio's own callbacks only wake tasks, and those stop by themselves.
    """
    host = _HERE.get() if context is None else context.get(_HERE)
    called = callback.func if isinstance(callback, partial) else callback
    if host is None or not str(getattr(called, "__module__", "")).startswith(_OF_HOSTS):
        return callback
    return partial(host.call, callback)


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
        self._parked: list[Callable[[], Any]] = []

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call it now, or after the pause. A dead host calls nothing."""
        if not self.paused:
            callback(*args)
        elif not self.dead:
            self._parked.append(partial(callback, *args))

    def pause(self) -> None:
        self.paused = True
        self._changed()

    def resume(self) -> None:
        self.paused = False
        waiting, self._resumed = self._resumed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        parked, self._parked = self._parked, []
        for callback in parked:
            asyncio.get_running_loop().call_soon(self.call, callback)
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


CONNECT_S = 1.0
"""After this time a connection to a host that does not answer fails."""
Serve = Callable[[Connection], Awaitable[None]]


class Network:
    """`latency_s`: draws the seconds that a frame takes, from the network's random source."""

    def __init__(self, random: Random, latency_s: Callable[[Random], float] = lambda random: 0.0005) -> None:
        self.random = random
        self.latency_s = latency_s
        self.hosts: dict[str, Host] = {}
        self.listeners: dict[str, SimulatedListener] = {}
        self.cuts: set[frozenset[str]] = set()
        self.pipes: list[_Pipe] = []
        self._ports = count(1)

    def host(self, name: str) -> Host:
        """Return the host; a new one after the last of this name was killed."""
        found = self.hosts.get(name)
        if found is None or found.dead:
            found = self.hosts[name] = Host(name)
            found.on_change.append(self.flow)
        return found

    def transport(self, name: str) -> SimulatedTransport:
        return SimulatedTransport(self, self.host(name))

    def cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self.cuts.clear()
        self.flow()

    def is_cut(self, one: Host, other: Host) -> bool:
        return frozenset((one.name, other.name)) in self.cuts

    def flow(self) -> None:
        """Move frames that could not move before a change."""
        for pipe in list(self.pipes):
            pipe.flow()

    def next_port(self) -> int:
        return next(self._ports)


class _Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, sender: Host, receiver: Host) -> None:
        self.network, self.sender, self.receiver = network, sender, receiver
        self.under_way: deque[tuple[float, bytes | None]] = deque()
        """Frames with the time of their arrival; None: the sender closed."""
        self.arrived: deque[bytes | None] = deque()
        self.wakeup = asyncio.Event()
        self.broken = False
        self._last = 0.0
        network.pipes.append(self)

    def send(self, frame: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        self._last = max(self._last, loop.time() + self.network.latency_s(self.network.random))
        self.under_way.append((self._last, frame))
        loop.call_at(self._last, self.flow)

    def flow(self) -> None:
        if self.broken or (self.sender.dead and not self.sender_died()):
            return
        if self.receiver.paused or self.network.is_cut(self.sender, self.receiver):
            return
        now = asyncio.get_running_loop().time()
        while self.under_way and self.under_way[0][0] <= now:
            self.arrived.append(self.under_way.popleft()[1])
            self.wakeup.set()

    def sender_died(self) -> bool:
        """Append the end that a dead sender's machine announces, once."""
        if all(frame is not None for _, frame in self.under_way) and None not in self.arrived:
            self.send(None)
        return True

    def break_(self) -> None:
        self.broken = True
        self.arrived.append(None)
        self.wakeup.set()
        if self in self.network.pipes:
            self.network.pipes.remove(self)


class SimulatedConnection:
    """ports.Connection."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._closed = False

    def send(self, frame: bytes) -> None:
        if self._closed or self._outgoing.broken or None in self._incoming.arrived:
            raise ConnectionLost()
        self._outgoing.send(bytes(frame))

    async def receive(self) -> bytes:
        pipe = self._incoming
        while not pipe.arrived:
            pipe.wakeup.clear()
            await pipe.wakeup.wait()
        frame = pipe.arrived[0]
        if frame is None or self._closed:
            self.close()
            raise ConnectionLost()
        pipe.arrived.popleft()
        return frame

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """Hand over the frames in the task of the caller, so that a paused host gets none."""
        while True:
            received(await self.receive())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._outgoing.broken:
                self._outgoing.send(None)
            self._incoming.break_()


class SimulatedListener:
    def __init__(self, network: Network, host: Host, address: str, serve: Serve) -> None:
        self._network, self.host, self._address, self._serve = network, host, address, serve
        self.connections: list[SimulatedConnection] = []
        network.listeners[address] = self

    @property
    def address(self) -> str:
        return self._address

    def accept(self, connection: SimulatedConnection) -> None:
        self.connections.append(connection)
        self.host.spawn(self._served(connection))

    async def _served(self, connection: SimulatedConnection) -> None:
        with suppress(ConnectionLost):
            await self._serve(connection)
        connection.close()
        self.connections.remove(connection)

    async def close(self) -> None:
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
        for connection in list(self.connections):
            connection.close()


class SimulatedTransport:
    """ports.Transport of one host. An address is "host:port"."""

    def __init__(self, network: Network, host: Host) -> None:
        self._network, self._host = network, host

    async def connect(self, address: str) -> Connection:
        network = self._network
        listener = network.listeners.get(address)
        target = listener.host if listener else network.hosts.get(address.rpartition(":")[0])
        if target is None or network.is_cut(self._host, target):
            await asyncio.sleep(CONNECT_S)
            raise ConnectionLost(f"{address} cannot be reached.")
        await asyncio.sleep(2 * network.latency_s(network.random))
        if listener is None or listener.host.dead or network.listeners.get(address) is not listener:
            raise ConnectionLost(f"No process listens at {address}.", refused=True)
        there, back = _Pipe(network, self._host, listener.host), _Pipe(network, listener.host, self._host)
        listener.accept(SimulatedConnection(back, there))
        return SimulatedConnection(there, back)

    async def listen(self, address: str, serve: Serve) -> SimulatedListener:
        host, _, port = address.rpartition(":")
        if port == "0":
            address = f"{host}:{self._network.next_port()}"
        return SimulatedListener(self._network, self._host, address, serve)
