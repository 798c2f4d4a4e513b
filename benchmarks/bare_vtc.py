"""VTC with nothing but its order, for benchmarks/simulate_million.py: what a policy costs at least in Python.

It makes the decisions of gpu_worker/policies/fairness/vtc.py, for weights of 1 and weighted tokens, and only those. It
has no records, no service by tenant, no refunds, preemption, other prices or checks, and no base class. Counters are in
service units, steps are decode steps.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush, heapreplace
from math import inf

from gpu_worker.policies.fairness.interface import QueueRequest

_PER_TOKEN = 2.0


class BareVtc:
    """The methods of QueuePolicy that the engine with separate prefill calls. `admit` is of the request of `peek`."""

    def __init__(self) -> None:
        self._step = 0
        self._queues: dict[str, deque[QueueRequest]] = {}
        self._heap: list[tuple[float, str]] = []
        """Lower bounds of the counters of tenants with a queue; those of others are dropped at the top."""
        self._counters: dict[str, tuple[float, int, float]] = {}
        """Value, the step at which it was that, and by how much it rises a step."""
        self._tenants: dict[str, str] = {}
        """The tenants of the running requests."""
        self._last_left: str | None = None

    def ignores_arrival_of(self, tenant: str) -> bool:
        return tenant in self._queues

    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        tenant = request.tenant
        queue = self._queues.get(tenant)
        if queue is not None:
            queue.append(request)
            return True
        if self.peek() is not None:
            level = self._heap[0][0]
        else:
            level = 0.0 if self._last_left is None else self._value(self._last_left)
        value, per_step = max(self._value(tenant), level), self._counters.get(tenant, (0.0, 0, 0.0))[2]
        self._counters[tenant] = value, self._step, per_step
        self._queues[tenant] = deque((request,))
        heappush(self._heap, (value, tenant))
        return True

    def peek(self) -> QueueRequest | None:
        heap, queues, counters, step = self._heap, self._queues, self._counters, self._step
        while heap:
            pushed, tenant = heap[0]
            queue = queues.get(tenant)
            if queue is None:
                heappop(heap)
                continue
            value, since, per_step = counters[tenant]
            now = value + per_step * (step - since)
            if now == pushed:
                return queue[0]
            heapreplace(heap, (now, tenant))
        return None

    def steps_of_head(self) -> float:
        heap = self._heap
        value, since, per_step = self._counters[heap[0][1]]
        if per_step <= 0.0 or len(heap) == 1:
            return inf
        above = min(heap[1:3])[0]
        return max(0.0, (above - value - per_step * (self._step - since)) // per_step - 1)

    def admit(self, request_id: str) -> None:
        tenant, step = self._heap[0][1], self._step
        queue = self._queues[tenant]
        request = queue.popleft()
        if not queue:
            del self._queues[tenant]
            self._last_left = tenant
        value, since, per_step = self._counters[tenant]
        now = value + per_step * (step - since) + request.input_tokens
        self._counters[tenant] = now, step, per_step + _PER_TOKEN
        self._tenants[request_id] = tenant

    def on_generated(self, request_id: str, output_tokens: int) -> None:
        tenant = self._tenants[request_id]
        value, since, per_step = self._counters[tenant]
        self._counters[tenant] = value + _PER_TOKEN, since, per_step

    def on_decoded(self, steps: int) -> None:
        self._step += steps

    def finish(self, request_id: str) -> None:
        tenant, step = self._tenants.pop(request_id), self._step
        value, since, per_step = self._counters[tenant]
        self._counters[tenant] = value + per_step * (step - since), step, per_step - _PER_TOKEN

    def _value(self, tenant: str) -> float:
        value, since, per_step = self._counters.get(tenant, (0.0, 0, 0.0))
        return value + per_step * (self._step - since)
