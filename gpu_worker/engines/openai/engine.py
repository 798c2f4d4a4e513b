"""An engine in front of any OpenAI-compatible server: the queue policy decides which requests enter it, and when.

At most `places` sequences are in the server at a time; all other requests wait here, in the policy's queue. Tokens are
charged to the policy as they arrive. The server itself decides which of its requests gets the next token. So a tenant's
request waits at most until enough of the requests in the server have ended, and never for the other waiting requests of
a tenant that had more service. docs/any-server.md says what this does not protect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gpu_worker.engines.interface import (
    EngineError,
    EngineStats,
    RefusedByPolicy,
    queue_request,
)
from gpu_worker.engines.openai.bodies import answers
from gpu_worker.engines.openai.entry import ServerAdmission
from gpu_worker.engines.openai.forwarding import Forwarding, Stream
from gpu_worker.engines.openai.options import ServerOptions
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.scheduling_stats import SchedulingStats, scheduling_gauges

TICK_S = 0.25
"""Between two passes while there are requests: ranks age, deadlines pass, and a limit of the policy may end."""


class OpenAiEngine(Forwarding):
    """`places`: sequences in the server at a time. `monotonic_s`: the clock of the policy."""

    def __init__(
        self,
        policy: QueuePolicy,
        options: ServerOptions,
        *,
        places: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options)
        self.policy = policy
        self._entry = ServerAdmission(policy, places)
        self._monotonic_s = monotonic_s
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.create_task(self._run())
        self._loop.add_done_callback(self._fail_streams)

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await super().stop()

    def stats(self) -> EngineStats:
        running, places = self._entry.running_by_tier()
        total = self._entry.places.blocks_total
        context_tokens = self.facts.context_tokens if self._server is not None else 0
        return EngineStats(
            waiting=self.policy.waiting,
            running=len(self._entry.places.running),
            kv_use=sum(places.values()) / total,
            tenants=self.policy.received,
            counts=SchedulingStats(expired=self._entry.expired),
            gauges=scheduling_gauges(
                self._entry.admission,
                running=running,
                blocks=places,
                blocks_total=total,
                pool_tokens=total * context_tokens,
                context_tokens=context_tokens,
            ),
        )

    def _on_arrival(self, stream: Stream) -> None:
        now_s, request = self._monotonic_s(), stream.request
        if not self._entry.arrive(queue_request(request, stream.input_tokens, now_s), answers(request), now_s):
            raise RefusedByPolicy
        self._changed.set()

    def _on_progress(self, stream: Stream) -> None:
        name = stream.request.execution
        if self._streams.get(name) is stream:
            self._entry.progressed(name, stream.input_tokens, stream.output_tokens, stream.cached_tokens)

    def _on_end(self, stream: Stream) -> None:
        self._entry.leave(stream.request.execution)
        self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._pass()
            self._changed.clear()
            try:
                async with asyncio.timeout(TICK_S if self._streams else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _fail_streams(self, loop: asyncio.Task[None]) -> None:
        """End every request with an error if the loop failed: it would wait for ever."""
        if not loop.cancelled():
            self._is_dead = True
            for stream in list(self._streams.values()):
                self._end(stream, EngineError("engine_failed", "the engine failed while it worked on this"))

    async def _pass(self) -> None:
        """End the requests past their deadline, and let others enter the server."""
        now_s = self._monotonic_s()
        for request_id in self._entry.pop_expired(now_s):
            await self.abort(request_id)
        for request_id in self._entry.admit(now_s):
            self._enter(self._streams[request_id])
