"""Who enters the engine's batch next: the interface of queue policies, their shared bookkeeping, and their registry.

A policy is pure and knows no engine. An adapter tells it of every change and asks it whom to admit:

    enqueue ──▶ waiting ──admit──▶ running ──generated*──▶ finish
                   │  ▲               │
                cancel ├── put_back ──┤   it did not fit after all: what it was charged is returned
                       └── preempt ───┘   it ran and was evicted: what it was charged stands

Service is charged when it is given: the prompt's at admission, each output token's as it is generated, by differences
of h, so the charges of a request add up to h of its final lengths (VTC section 4.2). Nothing is charged twice: a
request resumed after a preemption pays no second prompt, and tokens that are computed again pay only beyond the most
that was ever reported.

To add a policy: one class, one entry in POLICIES; tests/conformance finds it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction, service_delta
from gpu_worker.policies.line import Line
from gpu_worker.policies.received import Received, ReceivedService


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """One request as a policy sees it. `weight`: its tenant's share, a positive number."""

    request_id: str
    tenant: str
    input_tokens: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise ValueError(f"weight must be a positive number, not {self.weight!r}")
        if self.input_tokens < 0:
            raise ValueError(f"input_tokens must not be negative, not {self.input_tokens!r}")


@dataclass(slots=True)
class _Held:
    """A request between `enqueue` and its end. `place`: its number in the order of arrival, kept when it returns."""

    request: QueueRequest
    place: int
    admitted_before: bool = False
    output_tokens: int = 0


class QueuePolicy(ABC):
    """Orders the tenants' lines; within a tenant, first come, first served. Raises KeyError for unknown requests."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        self.service = service
        self._received = ReceivedService()
        self._arrivals = 0
        self._lines: dict[str, Line[_Held]] = {}
        self._waiting: dict[str, _Held] = {}
        self._running: dict[str, _Held] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def received(self) -> dict[str, Received]:
        """By tenant; of tenants that are gone, the last RECEIVED_MAX."""
        return self._received.by_tenant()

    def waiting_of(self, tenant: str) -> int:
        line = self._lines.get(tenant)
        return len(line) if line is not None else 0

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running

    def enqueue(self, request: QueueRequest) -> None:
        """A request arrived. Raises ValueError for an id that is here already."""
        if self.holds(request.request_id):
            raise ValueError(f"request {request.request_id!r} is here already")
        self._arrivals += 1
        self._received.arrived(request.tenant)
        self._stand_in_line(_Held(request, self._arrivals), lifted=True)

    def peek(self) -> QueueRequest | None:
        """Who is admitted next; None where nobody waits."""
        tenant = self._next_tenant()
        return None if tenant is None else self._lines[tenant].head().request

    def admit(self, request_id: str) -> QueueRequest:
        """It enters the batch: out of its line, its prompt charged (once)."""
        held = self._waiting.pop(request_id)
        self._running[request_id] = held
        self._take_out(held)
        if not held.admitted_before:
            held.admitted_before = True
            self._serve(held.request, self.service(held.request.input_tokens, 0), held.request.input_tokens, 0)
        return held.request

    def put_back(self, request_id: str) -> None:
        """Its admission came to nothing: in line again at its old place, all that it was charged returned.

        For the pass that admitted it; what ran since is preempted instead.
        """
        held = self._running.pop(request_id)
        tokens, output_tokens = held.request.input_tokens, held.output_tokens
        held.admitted_before, held.output_tokens = False, 0
        self._serve(held.request, -self.service(tokens, output_tokens), -tokens, -output_tokens)
        self._stand_in_line(held, lifted=False)

    def preempt(self, request_id: str) -> None:
        """Evicted after it ran: in line again at its old place; what it received stays charged."""
        self._stand_in_line(self._running.pop(request_id), lifted=True)

    def generated(self, request_id: str, output_tokens: int) -> None:
        """It has now generated so many tokens in all; charged beyond the most that was ever reported."""
        held = self._running[request_id]
        new = output_tokens - held.output_tokens
        if new > 0:
            delta = service_delta(self.service, held.request.input_tokens, held.output_tokens, output_tokens)
            held.output_tokens = output_tokens
            self._serve(held.request, delta, 0, new)

    def finish(self, request_id: str) -> None:
        """It left the batch, done or aborted."""
        self._gone(self._running.pop(request_id).request)

    def cancel(self, request_id: str) -> None:
        """It left its line."""
        held = self._waiting.pop(request_id)
        self._take_out(held)
        self._gone(held.request)

    def leave(self, request_id: str) -> None:
        """`finish` or `cancel`, wherever it is."""
        (self.cancel if request_id in self._waiting else self.finish)(request_id)

    def _stand_in_line(self, held: _Held, *, lifted: bool) -> None:
        request = held.request
        new_in_queue = request.tenant not in self._lines
        if new_in_queue and lifted:
            self._joins(request)
        self._lines.setdefault(request.tenant, Line()).add(held.place, held)
        self._waiting[request.request_id] = held
        self._enqueued(request, held.place, new_in_queue)

    def _take_out(self, held: _Held) -> None:
        tenant = held.request.tenant
        line = self._lines[tenant]
        line.remove(held.place)
        self._left_line(held.request, held.place)
        if not line:
            del self._lines[tenant]
            self._leaves(tenant)

    def _serve(self, request: QueueRequest, service: float, input_tokens: int, output_tokens: int) -> None:
        self._received.add(request.tenant, service, input_tokens, output_tokens)
        self._charged(request, service)

    def _gone(self, request: QueueRequest) -> None:
        self._received.gone(request.tenant)
        if not self._received.present(request.tenant):
            self._tenant_gone(request.tenant)

    @abstractmethod
    def _next_tenant(self) -> str | None:
        """Whose line is served next; None where nobody waits."""

    def _joins(self, request: QueueRequest) -> None:
        """Its tenant has nothing waiting and is about to (VTC's counter lift)."""

    def _enqueued(self, request: QueueRequest, place: int, new_in_queue: bool) -> None:
        """The request stands in its line now; `new_in_queue`: as its tenant's only one."""

    def _left_line(self, request: QueueRequest, place: int) -> None:
        """The request stands in its line no more; its charge, if any, comes after."""

    def _leaves(self, tenant: str) -> None:
        """The tenant's last waiting request left the queue; its charge, if any, comes after."""

    def _charged(self, request: QueueRequest, service: float) -> None:
        """The tenant received so much service (negative: it was returned)."""

    def _tenant_gone(self, tenant: str) -> None:
        """The tenant has nothing here any more."""


PolicyFactory = Callable[[ServiceFunction], QueuePolicy]
POLICIES: dict[str, PolicyFactory] = {}
"""By the names of the command line. LCF, RPM, DRR and WSC join here."""


def make_policy(name: str, service: ServiceFunction = WEIGHTED_TOKENS) -> QueuePolicy:
    """Raises ValueError for a name that no policy has."""
    from gpu_worker.policies import baselines, vtc  # noqa: F401 - they enter themselves into POLICIES

    if name not in POLICIES:
        raise ValueError(f"unknown queue policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return POLICIES[name](service)
