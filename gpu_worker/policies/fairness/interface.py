"""Who enters the engine's batch next: the interface of queue policies.

A policy is pure and knows no engine. An adapter tells it of every change and asks it whom to admit:

    enqueue ──▶ waiting ──admit──▶ running ──generated*, decoded*──▶ finish
       │           │  ▲               │
    (False)     cancel ├── put_back ──┤   it did not fit after all: what this admission was charged is returned
    refused            └── preempt ───┘   it ran and was evicted: what it was charged stands

Service is charged when it is given: the prompt's at admission, each output token's as it is generated, by differences
of h, so the charges of a request add up to h of its final lengths (VTC section 4.2). Nothing is charged twice: a
request resumed after a preemption pays no second prompt, and tokens that are computed again pay only beyond the most
that was ever reported.

To add a policy: one file, one class (most extend fairness/tenant_queues.py), one entry in the registry;
tests/conformance finds it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from dispatcher.policies.service import CACHED_FRACTION
from gpu_worker.policies.fairness.accounting.tenant_service import TenantService
from gpu_worker.policies.request import QueueRequest as QueueRequest

Precedence = tuple[float, float]
"""How far a running request stands behind one that waits: in rank, then in service. The higher, the sooner evicted."""


class QueuePolicy(ABC):
    """Raises KeyError for unknown requests. Times are seconds of any clock that does not go back."""

    work_conserving = True
    """Whether somebody is next wherever somebody waits."""
    cached_fraction = CACHED_FRACTION
    """What a prompt token out of a prefix cache is charged, of one that was computed, 0 to 1."""

    @property
    @abstractmethod
    def waiting(self) -> int: ...

    @property
    @abstractmethod
    def running(self) -> int: ...

    @property
    @abstractmethod
    def received(self) -> dict[str, TenantService]:
        """By tenant; of tenants that are gone, the last RECEIVED_KEPT_MAX."""

    @abstractmethod
    def waiting_of(self, tenant: str) -> int: ...

    @abstractmethod
    def holds(self, request_id: str) -> bool: ...

    @abstractmethod
    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        """A request arrived. False: it is refused, and nothing is kept of it. Raises ValueError for an id that is here
        already."""

    @abstractmethod
    def peek(self) -> QueueRequest | None:
        """Who is admitted next; None where nobody waits, or nobody may."""

    @abstractmethod
    def admit(self, request_id: str) -> QueueRequest:
        """It enters the batch: out of its line, its prompt charged (once)."""

    @abstractmethod
    def undo_admit(self, request_id: str) -> None:
        """Its admission came to nothing: in line again at its old place, all that it was charged for it returned.

        For the pass that admitted it; what ran since is preempted instead. One that was resumed was charged for what
        it received before it was preempted: that stands.
        """

    @abstractmethod
    def preempt(self, request_id: str) -> None:
        """Evicted after it ran: in line again at its old place; what it received stays charged."""

    @abstractmethod
    def cached(self, request_id: str, input_tokens: int) -> None:
        """So many of a running request's prompt tokens came out of a cache: most of their charge is returned, once."""

    @abstractmethod
    def generated(self, request_id: str, output_tokens: int) -> None:
        """It has now generated so many tokens in all; charged beyond the most that was ever reported."""

    @abstractmethod
    def decoded(self, steps: int, excluding: Collection[str] = ()) -> None:
        """Every running request generated so many tokens more, but those named."""

    @abstractmethod
    def finish(self, request_id: str) -> None:
        """It left the batch, done or aborted."""

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """It left its line."""

    @abstractmethod
    def remove(self, request_id: str) -> None:
        """`finish` or `cancel`, wherever it is."""

    # What tiers add; a policy without them has one line and evicts nobody.

    def advance_to(self, now_s: float) -> None:
        """The clock has come so far; told before a pass of admissions."""

    def heads(self) -> list[QueueRequest]:
        """Who is admitted next, and then who would be if the one before did not fit and may be passed over."""
        head = self.peek()
        return [] if head is None else [head]

    def precedence(self, waiting: QueueRequest, running_id: str) -> Precedence | None:
        """How far the running one stands behind the waiting one; None: it may not be evicted for it."""
        return None

    def counter(self, tenant: str) -> float | None:
        """What decides between tenants, in service units over weight; None where nothing of that kind does."""
        return None

    def counters(self) -> list[dict[str, float]]:
        """Of tenants with something waiting; those in one dictionary are kept close by the policy."""
        return []
