"""The life of an invocation: a state machine, pure.

                    ┌────────────── retry (lease lost, at most ATTEMPTS_MAX) ──────────────┐
                    ▼                                                                      │
    submit ──▶ QUEUED ──dispatch──▶ RUNNING ──settle──▶ DONE | FAILED                      │
       │          │                    └───────────────────────────────────────────────────┘
       │          └── deadline ──▶ EXPIRED        ── caller gone ──▶ CANCELLED
       └── free slot, nobody due before ──▶ RUNNING

Every accepted invocation reaches exactly one terminal state. An execution is named by (invocation, attempt): whatever
arrives under an older attempt is fenced off.
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
    """What an invocation ended with: OpenAI's answer (JSON text), or an error body with its HTTP status."""

    status: int
    body: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request of a tenant, from acceptance to settlement. Times are Unix seconds, costs service units."""

    tenant: str
    id: str
    """Unique within the tenant: the caller's idempotency key, else one made at acceptance."""
    queue: str
    """Whose line it waits in: the tenant's own; under the `fcfs` order everybody's."""
    pool: str
    model: str
    fingerprint: str
    """SHA-256 of the request body: the same id with another body is refused."""
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
    """Nobody holds a connection open: the drain has it executed through the queue, the answer is kept."""
    body: str | None = None
    """The request, kept only where it may have to be executed by someone else, or answered again."""
    result: Result | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    served: float = 0.0
    """True service, once settled."""

    @property
    def queue_key(self) -> str:
        """Orders a line: arrival first (zero-padded milliseconds), the id against ties."""
        return f"{round(self.arrived_at * 1000):015d}#{self.tenant}#{self.id}"


class IllegalTransition(Exception):
    """A programmer's mistake: this state has no such successor."""


def dispatched(invocation: Invocation, slot: Slot, charge: Charge, now: float) -> Invocation:
    """QUEUED to RUNNING, under the next attempt number."""
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
    """RUNNING back to QUEUED after its lease was lost. The attempt number stays and so fences the lost execution."""
    _require(invocation, State.RUNNING)
    return replace(invocation, state=State.QUEUED, slot=None, charge=None, dispatched_at=None)


def may_retry(invocation: Invocation, now: float, *, holding: bool) -> bool:
    """Whether a lost execution is tried again: in time, within the attempts, and by someone who has the request.

    `holding`: a connection is open and its process has the request; otherwise it must have been kept.
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
    """To a terminal state. The request body is dropped: a prompt lives no longer than its execution needs it."""
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
