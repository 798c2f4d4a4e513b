"""One order of the gate without the operations (dispatcher/policies/orders), with deadlines and bounded queues.

For orders that exist only for comparison, and to separate the effect of an order from that of the production
operations.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf

from dispatcher.policies.old_orders.interface import Dispatched
from dispatcher.policies.old_orders.registry import new_gate
from dispatcher.policies.service import ServiceFunction
from headgate.simulator.gates.interface import Downstream
from headgate.simulator.gates.spec import HEARTBEAT_S, SWEEP_S, GateSpec
from headgate.simulator.requests import SimRequest


class OrderGate:
    def __init__(self, spec: GateSpec, service: ServiceFunction, downstream: Downstream) -> None:
        self._spec = spec
        self._service = service
        self._downstream = downstream
        self._gate = new_gate(spec.order, slots=spec.slots)
        self._held: dict[str, SimRequest] = {}
        self._waiting: set[str] = set()
        self._queues: Counter[str] = Counter()
        self._deadlines: deque[tuple[float, str]] = deque()
        guarantees = any(tenant.share.rate_per_s for tenant in spec.tenants.values())
        self._heartbeat_s = HEARTBEAT_S if guarantees else inf
        self._sweep_s = SWEEP_S
        for name, tenant in spec.tenants.items():
            self._gate.set_share(name, tenant.share, 0.0)

    def arrive(self, request: SimRequest, now_s: float) -> None:
        tenant, number = request.tenant, request.request_id
        self._held[number] = request
        decision = self._gate.arrive(tenant, number, self._cost(request), now_s)
        if isinstance(decision, Dispatched):
            self._dispatch(decision, now_s)
        elif self._queues[tenant] >= self._spec.tenant(tenant).queue_max:
            self._reject(number, "full", now_s)
        else:
            self._waiting.add(number)
            self._queues[tenant] += 1
            self._deadlines.append((now_s + self._spec.deadline_s, number))

    def ended(self, request: SimRequest, now_s: float) -> None:
        del self._held[request.request_id]
        served = self._service(*request.charged_tokens)
        self._dispatch(self._gate.settle(request.request_id, served, now_s), now_s)

    def next_s(self) -> float:
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            self._deadlines.popleft()
        deadline_s = self._deadlines[0][0] if self._deadlines else inf
        return min(deadline_s, self._heartbeat_s)

    def advance(self, until_s: float) -> None:
        while self._heartbeat_s <= until_s:
            self._heartbeat(self._heartbeat_s)
            self._heartbeat_s += HEARTBEAT_S
        while self._deadlines and self._deadlines[0][0] <= until_s:
            deadline_s, number = self._deadlines.popleft()
            if number in self._waiting:
                self._leave_queue(number)
                self._reject(number, "timeout", deadline_s)

    def close(self) -> None:
        pass

    def _heartbeat(self, now_s: float) -> None:
        """Measure the engine's capacity; at a sweep, give it to the order, which scales overbooked guarantees."""
        capacity_per_s = self._downstream.service_per_s(now_s)
        if now_s >= self._sweep_s:
            self._sweep_s += SWEEP_S
            self._gate.set_capacity(capacity_per_s or None, now_s)

    def _dispatch(self, decision: Dispatched | None, now_s: float) -> None:
        """Send the request to the engine. If the engine refuses it, its slot is free again: dispatch the next."""
        while decision is not None:
            number = decision.invocation_id
            if number in self._waiting:
                self._leave_queue(number)
            if self._downstream.dispatch(self._held[number], now_s):
                return
            del self._held[number]
            decision = self._gate.settle(number, 0.0, now_s)

    def _leave_queue(self, number: str) -> None:
        self._waiting.remove(number)
        self._queues[self._held[number].tenant] -= 1

    def _reject(self, number: str, reason: str, now_s: float) -> None:
        self._gate.cancel(number, now_s)
        request = self._held.pop(number)
        request.rejected = reason
        self._downstream.reject(request)

    def _cost(self, request: SimRequest) -> float:
        """Return what the dispatch charges. A client asks for at least one token."""
        return self._service(request.arrival.input_tokens, max(1, request.arrival.output_tokens))
