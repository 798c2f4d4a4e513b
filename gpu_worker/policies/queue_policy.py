"""Who enters the engine's batch next: the interface of queue policies, their shared bookkeeping, and their registry.

A policy is pure and knows no engine. An adapter tells it of every change and asks it whom to admit:

    enqueue ──▶ waiting ──admit──▶ running ──generated*──▶ finish
                   │  ▲               │
                cancel └───put_back───┘   (taken, but did not fit after all)

Service is charged when it is given: the prompt's at admission, each output token's as it is generated, by differences
of h, so the charges of a request add up to h of its final lengths (VTC section 4.2). A charge taken at an admission
that is put back is returned. Tokens recomputed after a preemption are no new service: charges follow the high-water
mark.

To add a policy: one class, one entry in POLICIES; tests/conformance finds it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction, service_delta

RECEIVED_MAX = 10_000
"""Tenants whose received service is kept for the statistics; no decision depends on it."""


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """One request as a policy sees it. `weight`: its tenant's share, a positive number."""

    request_id: str
    tenant: str
    input_tokens: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight must be a positive number, not {self.weight!r}")
        if self.input_tokens < 0:
            raise ValueError(f"input_tokens must not be negative, not {self.input_tokens!r}")


@dataclass(slots=True)
class _Running:
    request: QueueRequest
    output_tokens: int = 0


@dataclass(slots=True)
class Received:
    """What a tenant has received: tokens, and service in h's units, weights not applied."""

    input_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0


class QueuePolicy(ABC):
    """Orders the tenants' lines; within a tenant, first come, first served. Raises KeyError for unknown requests."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        self.service = service
        self.received: dict[str, Received] = {}
        self._lines: dict[str, deque[QueueRequest]] = {}
        self._waiting: dict[str, QueueRequest] = {}
        self._running: dict[str, _Running] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def waiting_of(self, tenant: str) -> int:
        return len(self._lines.get(tenant, ()))

    def enqueue(self, request: QueueRequest) -> None:
        """A request arrived. Raises ValueError for an id that is here already."""
        if request.request_id in self._waiting or request.request_id in self._running:
            raise ValueError(f"request {request.request_id!r} is here already")
        new_in_queue = request.tenant not in self._lines
        if new_in_queue:
            self._joins(request)
        self._lines.setdefault(request.tenant, deque()).append(request)
        self._waiting[request.request_id] = request
        self._enqueued(request, new_in_queue)

    def peek(self) -> QueueRequest | None:
        """Who is admitted next; None where nobody waits."""
        tenant = self._next_tenant()
        return None if tenant is None else self._lines[tenant][0]

    def admit(self, request_id: str) -> QueueRequest:
        """It enters the batch: out of its line, its prompt charged."""
        request = self._waiting.pop(request_id)
        self._take_out(request)
        self._running[request_id] = _Running(request)
        received = self.received.setdefault(request.tenant, Received())
        received.input_tokens += request.input_tokens
        self._serve(request, self.service(request.input_tokens, 0))
        return request

    def put_back(self, request_id: str) -> None:
        """Its admission came to nothing: to the head of its line again, what it was charged returned."""
        running = self._running.pop(request_id)
        request = running.request
        received = self.received[request.tenant]
        received.input_tokens -= request.input_tokens
        received.output_tokens -= running.output_tokens
        self._serve(request, -self.service(request.input_tokens, running.output_tokens))
        new_in_queue = request.tenant not in self._lines
        self._lines.setdefault(request.tenant, deque()).appendleft(request)
        self._waiting[request_id] = request
        self._enqueued(request, new_in_queue)

    def generated(self, request_id: str, output_tokens: int) -> None:
        """It has now generated so many tokens in all; charged beyond the most that was ever reported."""
        running = self._running[request_id]
        if output_tokens <= running.output_tokens:
            return
        request = running.request
        delta = service_delta(self.service, request.input_tokens, running.output_tokens, output_tokens)
        self.received[request.tenant].output_tokens += output_tokens - running.output_tokens
        running.output_tokens = output_tokens
        self._serve(request, delta)

    def finish(self, request_id: str) -> None:
        """It left the batch, done or aborted."""
        self._finished(self._running.pop(request_id).request)

    def cancel(self, request_id: str) -> None:
        """It left its line without having been admitted."""
        self._take_out(self._waiting.pop(request_id))

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running

    def _take_out(self, request: QueueRequest) -> None:
        line = self._lines[request.tenant]
        if line[0] is request:
            line.popleft()
        else:
            line.remove(request)
        if not line:
            del self._lines[request.tenant]
            self._leaves(request.tenant)

    def _serve(self, request: QueueRequest, service: float) -> None:
        self.received[request.tenant].service += service
        self._charged(request, service)

    @abstractmethod
    def _next_tenant(self) -> str | None:
        """Whose line is served next; None where nobody waits."""

    def _joins(self, request: QueueRequest) -> None:
        """Its tenant has nothing waiting and is about to (VTC's counter lift)."""

    def _enqueued(self, request: QueueRequest, new_in_queue: bool) -> None:
        """The request stands in its line now."""

    def _leaves(self, tenant: str) -> None:
        """The tenant's last waiting request left the queue."""

    def _charged(self, request: QueueRequest, service: float) -> None:
        """The tenant received so much service (negative: it was returned)."""

    def _finished(self, request: QueueRequest) -> None:
        """A request of the tenant left the batch. Of tenants long gone, only so many figures are kept."""
        if len(self.received) > RECEIVED_MAX:
            running = {entry.request.tenant for entry in self._running.values()}
            gone = next((name for name in self.received if name not in self._lines and name not in running), None)
            if gone is not None:
                del self.received[gone]


PolicyFactory = Callable[[ServiceFunction], QueuePolicy]
POLICIES: dict[str, PolicyFactory] = {}
"""By the names of the command line. LCF, RPM, DRR and WSC join here."""


def make_policy(name: str, service: ServiceFunction = WEIGHTED_TOKENS) -> QueuePolicy:
    """Raises ValueError for a name that no policy has."""
    from gpu_worker.policies import baselines, vtc  # noqa: F401 - they enter themselves into POLICIES

    if name not in POLICIES:
        raise ValueError(f"unknown queue policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return POLICIES[name](service)
