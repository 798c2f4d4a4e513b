"""The life of an invocation: a state machine, pure.

                    ┌────────────── retry (lease lost, at most ATTEMPTS_MAX) ──────────────┐
                    ▼                                                                      │
    submit ──▶ QUEUED ──dispatch──▶ RUNNING ──settle──▶ DONE | FAILED                      │
       │          │                    └───────────────────────────────────────────────────┘
       │          └── deadline ──▶ EXPIRED        ── caller gone ──▶ CANCELLED
       └── a free slot, and no waiting request is due earlier ──▶ RUNNING

Every accepted invocation reaches exactly one terminal state. (invocation, attempt) names an execution: a report under
an older attempt changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from dispatcher.policies.clocks import Charge

ATTEMPTS_MAX = 3


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Slot:
    """One unit of a worker's concurrency."""

    worker: str
    number: int


@dataclass(frozen=True, slots=True)
class Result:
    """The end of an invocation: OpenAI's answer (JSON text), or an error body with its HTTP status."""

    status: int
    body: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request of a tenant, from acceptance to settlement. Times are Unix seconds, costs service units."""

    tenant: str
    id: str
    """Unique within the tenant: the caller's idempotency key, or an id made at acceptance."""
    queue: str
    """The queue in which it waits: the tenant's own. Under the `fcfs` order all tenants share one."""
    pool: str
    model: str
    fingerprint: str
    """SHA-256 of the request. The same id with another fingerprint is refused."""
    arrived_at: float
    deadline_at: float
    estimate: float
    """Service units that its dispatch charges."""
    config_version: int
    state: State = State.QUEUED
    attempt: int = 0
    slot: Slot | None = None
    charge: Charge | None = None
    dispatched_at: float | None = None
    ended_at: float | None = None
    detached: bool = False
    """No caller holds a connection open. It is executed through SQS, and its answer is kept."""
    body: str | None = None
    """The request (Request.to_json). Kept only if another process may have to execute it."""
    result: Result | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    served: float = 0.0
    """The true service in service units. 0 until it is settled."""

    @property
    def queue_key(self) -> str:
        """The sort key in a queue: the arrival in zero-padded milliseconds, then tenant and id against ties."""
        return f"{round(self.arrived_at * 1000):015d}#{self.tenant}#{self.id}"


class IllegalTransition(Exception):
    """The state machine has no such transition: a mistake in the program."""


def dispatched(invocation: Invocation, slot: Slot, charge: Charge, now: float) -> Invocation:
    """Return the invocation as RUNNING on `slot`, under the next attempt number. Raises IllegalTransition."""
    _require(invocation, State.QUEUED)
    return replace(
        invocation,
        state=State.RUNNING,
        attempt=invocation.attempt + 1,
        slot=slot,
        charge=charge,
        dispatched_at=now,
    )


def retried(invocation: Invocation) -> Invocation:
    """Return the invocation as QUEUED again after its execution was lost. Raises IllegalTransition.

    The attempt number stays, so the next dispatch gets a higher one and a late report of the lost execution is ignored.
    """
    _require(invocation, State.RUNNING)
    return replace(invocation, state=State.QUEUED, slot=None, charge=None, dispatched_at=None)


def may_retry(invocation: Invocation, now: float, *, holding: bool) -> bool:
    """Return whether a lost execution is tried again: before the deadline, below ATTEMPTS_MAX, with the request known.

    `holding`: the caller's connection is open, and the process that holds it has the request. Without it the request
    must be in `body`.
    """
    executable = invocation.body is not None if invocation.detached else holding
    return executable and invocation.attempt < ATTEMPTS_MAX and now < invocation.deadline_at


def ended(
    invocation: Invocation,
    state: State,
    now: float,
    *,
    result: Result | None = None,
    input_tokens: int = 0,
    output_tokens: int = 0,
    served: float = 0.0,
) -> Invocation:
    """Return the invocation in the terminal state `state`. Raises IllegalTransition.

    `body` is dropped: a prompt is kept no longer than its execution needs it.
    """
    if invocation.state.is_terminal or not state.is_terminal:
        raise IllegalTransition(f"{invocation.state.value} cannot become {state.value}")
    return replace(
        invocation,
        state=state,
        ended_at=now,
        result=result,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        served=served,
        body=None,
    )


def _require(invocation: Invocation, state: State) -> None:
    if invocation.state is not state:
        raise IllegalTransition(f"{invocation.state.value}, not {state.value}")
