"""The port of worker clients as async generators: a fake generates events, and a test iterates over a client's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.worker_protocol import Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.ports import AttemptEvents, RunningAttempt, WorkerClient


class GeneratedAttempt:
    """ports.RunningAttempt: a task that gives a generator's events to their receiver. Closing cancels the task, once it
    has begun: a real client has sent the order then.

    The generator may raise WorkerFailed, or end without a last event.
    """

    def __init__(self, generated: AsyncGenerator[WorkEvent, None], events: AttemptEvents) -> None:
        self._generated, self._events = generated, events
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_over = self._is_closed = False
        self._task = asyncio.ensure_future(self._run())

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        if not self._is_over and not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().call_soon(self._task.cancel)

    async def _run(self) -> None:
        failure = WorkerFailed()
        try:
            async with aclosing(self._generated) as generated:
                async for event in generated:
                    await self._flowing.wait()
                    if self._is_closed:
                        continue
                    self._is_over = isinstance(event, Finished | WorkRefused)
                    self._events.take(event)
        except WorkerFailed as error:
            failure = error
        except Exception as error:
            logging.getLogger("headgate.gate").exception("an attempt failed: %s", type(error).__name__)
        if not self._is_over and not self._is_closed:
            self._is_over = True
            self._events.fail(failure)


async def streamed(client: WorkerClient, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
    """Yield the events of an execution. Closing the generator closes the attempt. Raises WorkerFailed."""
    received = _Received()
    attempt: RunningAttempt = client.execute(offer, order, received)
    try:
        while True:
            event = await received.queue.get()
            if isinstance(event, WorkerFailed):
                raise event
            yield event
            if isinstance(event, Finished | WorkRefused):
                return
    finally:
        attempt.close()


class _Received:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[WorkEvent | WorkerFailed] = asyncio.Queue()

    def take(self, event: WorkEvent) -> None:
        self.queue.put_nowait(event)

    def fail(self, error: WorkerFailed) -> None:
        self.queue.put_nowait(error)
