"""The environments of one function and its queue of events.

As in Lambda: an environment starts when it is needed and stays warm; a caller beyond the concurrency is refused (429),
an event waits; after a failure it is tried twice more under the same request id. Not as in Lambda: the queue
of events is bounded, and its events are lost when the stack stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headgate.local.aws_lambda.environment import Sandbox
from headgate.local.aws_lambda.invocation import FunctionSpec, LambdaAnswer, LambdaRequest
from headgate.machine.processes import Children

_EVENTS_MAX = 10_000
EVENT_RETRY_DELAYS_S = (60.0, 120.0)
"""Lambda's delays: a minute before the first retry, two before the second."""

logger = logging.getLogger(__name__)


class TooManyRequests(Exception):
    """The function is at its concurrency, or its event queue is full."""


class FunctionPool:
    """The environments of a function.

    `environment`: variables that every environment gets. `now`: Unix seconds, for the deadline of an invocation.
    """

    def __init__(
        self, spec: FunctionSpec, children: Children, environment: Mapping[str, str], now: Callable[[], float]
    ) -> None:
        self.spec = spec
        self._children = children
        self._environment = environment
        self._now = now
        self._free = asyncio.Semaphore(spec.concurrency)
        self._idle: deque[Sandbox] = deque()
        self._sandboxes: set[Sandbox] = set()
        self._started = 0

    async def invoke(self, request: LambdaRequest, *, wait: bool = False) -> LambdaAnswer:
        """Invoke the function. At its concurrency wait for a free environment if `wait`, else raise TooManyRequests."""
        if not wait and self._free.locked():
            raise TooManyRequests(self.spec.name)
        async with self._free:
            sandbox = await self._take()
            reusable = False
            try:
                deadline_ms = int((self._now() + self.spec.timeout_s) * 1000)
                answer = await sandbox.invoke(request, deadline_ms)
                reusable = answer.reusable
                return answer
            finally:
                await self._give_back(sandbox, reusable)

    async def prewarm(self, count: int) -> None:
        """Start `count` environments and wait until their handlers are loaded (provisioned concurrency)."""
        sandboxes = await asyncio.gather(*(self._start() for _ in range(count)))
        for sandbox, failed in zip(sandboxes, await asyncio.gather(*(s.ready() for s in sandboxes)), strict=True):
            await self._give_back(sandbox, reusable=failed is None)

    async def stop(self) -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes))
        self._sandboxes.clear()
        self._idle.clear()

    async def _take(self) -> Sandbox:
        while self._idle:
            sandbox = self._idle.pop()  # the warmest
            if sandbox.alive:
                return sandbox
            await self._give_back(sandbox, reusable=False)
        return await self._start()

    async def _start(self) -> Sandbox:
        self._started += 1
        name = f"lambda-{self.spec.name}-{self._started}"
        sandbox = await Sandbox.start(self.spec, name, self._children, self._environment)
        self._sandboxes.add(sandbox)
        return sandbox

    async def _give_back(self, sandbox: Sandbox, reusable: bool) -> None:
        if reusable and sandbox.alive:
            self._idle.append(sandbox)
            return
        self._sandboxes.discard(sandbox)
        await sandbox.stop()


class InvocationQueue:
    """Asynchronous invocations of one function (InvocationType=Event)."""

    def __init__(
        self,
        pool: FunctionPool,
        *,
        retry_delays_s: Sequence[float] = EVENT_RETRY_DELAYS_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        events_max: int = _EVENTS_MAX,
    ) -> None:
        self._pool = pool
        self._retry_delays_s = retry_delays_s
        self._events_max = events_max
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Count the events that are queued, running or waiting for a retry."""
        return len(self._tasks)

    def put(self, request: LambdaRequest) -> None:
        """Add an event. Raises TooManyRequests if the queue is full."""
        if len(self._tasks) >= self._events_max:
            raise TooManyRequests(self._pool.spec.name)
        # One task for each event; the pool's semaphore is the queue, first come first served.
        task = asyncio.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        """Wait until no event is left."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, request: LambdaRequest) -> None:
        for delay_s in (*self._retry_delays_s, None):
            answer = await self._pool.invoke(request, wait=True)
            if answer.function_error is None:
                return
            if delay_s is not None:
                await self._sleep(delay_s)
        logger.warning("event %s of %s failed for the last time: dropped", request.request_id, self._pool.spec.name)
