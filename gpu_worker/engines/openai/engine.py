"""An engine in front of any OpenAI-compatible server: the queue policy decides which requests enter it, and when.

At most `places` sequences are in the server at a time; all other requests wait here, in the policy's queue. Tokens are
charged to the policy as they arrive. The server itself decides which of its requests gets the next token. So a tenant's
request waits at most until enough of the requests in the server have ended, and never for the other waiting requests of
a tenant that had more service. docs/any-server.md says what this does not protect.

A place is one sequence in the server; a request with `n` choices takes n of them, at most all. The policy sees a place
as a KV block, so that the premium reserve keeps places free. No request is evicted: its caller has tokens already, and
OpenAI's protocol cannot continue an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import (
    EngineError,
    EngineStats,
    RefusedByPolicy,
    queue_request,
)
from gpu_worker.engines.openai.forwarding import Forwarding, Stream
from gpu_worker.engines.openai.server_api import ServerOptions, answers
from gpu_worker.policies.admission import Admission, Obstacle
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.preemption import Resident
from gpu_worker.policies.scheduling_stats import SchedulingStats, scheduling_gauges


class ServerPlaces:
    """The admission's `KvBudget`. `total`: sequences that the server computes at a time."""

    def __init__(self, total: int) -> None:
        self.blocks_total = total
        self.slots_free = total
        self.swap_bytes_free = 0.0
        self.step_tokens = None
        self.running: dict[str, Resident] = {}
        self._wanted: dict[str, int] = {}

    @property
    def blocks_free(self) -> int:
        return self.blocks_total - sum(each.blocks for each in self.running.values())

    def want(self, request_id: str, places: int) -> None:
        self._wanted[request_id] = min(places, self.blocks_total)

    def blocks_needed(self, request_id: str) -> int:
        return self._wanted[request_id]

    def obstacle(self, request_id: str) -> Obstacle | None:
        return None

    def adapter_holders(self, request_id: str) -> Sequence[Sequence[str]]:
        """No request has an adapter."""
        return ()

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        return sum(each.blocks for each in self.running.values() if each.tier in tiers)

    def residents(self, wanted: Callable[[str], bool]) -> Iterable[Resident]:
        """No request is ever evicted."""
        return ()

    def enter(self, request: QueueRequest) -> None:
        name = request.request_id
        self.running[name] = Resident(name, request.tier, self._wanted[name], 0, 0)

    def leave(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        del self._wanted[request_id]


class ServerAdmission:
    """`policy`: which request is next. `places`: sequences in the server at a time."""

    def __init__(self, policy: QueuePolicy, places: int) -> None:
        self.admission = Admission(policy)
        self.admission.settings = replace(self.admission.settings, preemption=False)
        self.places = ServerPlaces(places)
        self.expired = 0
        self._policy = policy

    def arrive(self, request: QueueRequest, places: int, now_s: float) -> bool:
        """Enqueue a request. Return False if the policy refuses it."""
        if not self.admission.enqueue(request, now_s):
            return False
        most = self.admission.blocks_max(request.tier, self.places.blocks_total)
        self.places.want(request.request_id, max(1, min(places, most)))
        return True

    def admit(self, now_s: float) -> list[str]:
        """Return the requests that enter the server now, in order."""
        self.admission.begin_pass(now_s)
        entered = []
        while (plan := self.admission.next_plan(self.places)) is not None:
            self._policy.admit(plan.request.request_id)
            self.places.enter(plan.request)
            entered.append(plan.request.request_id)
        return entered

    def pop_expired(self, now_s: float) -> list[str]:
        """Return the requests past their deadline, each once."""
        self.admission.begin_pass(now_s)
        found = self.admission.pop_expired()
        self.expired += len(found)
        return found

    def progressed(self, request_id: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> None:
        """Charge the tokens of a request in the server: of its prompt, as counted by now, and of its output so far.
        `cached_tokens`: of the prompt; the server reports them with its last piece."""
        self._policy.on_prompt_counted(request_id, input_tokens)
        self._policy.on_generated(request_id, output_tokens)
        self._policy.on_cached(request_id, cached_tokens)

    def leave(self, request_id: str) -> None:
        """Remove a request that has ended, in the server or while it waited."""
        self._policy.remove(request_id)
        self.places.leave(request_id)

    def running_by_tier(self) -> tuple[Counter[Tier], Counter[Tier]]:
        """Return the requests in the server and their places, by tier."""
        running: Counter[Tier] = Counter()
        places: Counter[Tier] = Counter()
        for resident in self.places.running.values():
            running[resident.tier] += 1
            places[resident.tier] += resident.blocks
        return running, places


_TICK_S = 0.25
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
                async with asyncio.timeout(_TICK_S if self._streams else None):
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
