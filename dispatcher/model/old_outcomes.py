"""The expected outcomes of operations and of store writes, as values. Exceptions are for errors only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation


class Written(Enum):
    """The outcome of a conditional write to the store."""

    DONE = "done"
    CONFLICT = "conflict"
    """Another write came first, and the condition no longer holds: take a new snapshot."""
    EXISTS = "exists"
    """The invocation is already stored: a retry with the same idempotency key."""
    FULL = "full"
    """The queue is at its bound."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Admitted at once. The caller executes `invocation` on its slot of `worker`."""

    invocation: Invocation
    worker: Worker


@dataclass(frozen=True, slots=True)
class Queued:
    """Accepted and waiting. `position` counts from 1 within the tenant's queue; `wait_s` is an estimate."""

    invocation: Invocation
    position: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """Submitted before under the same id. The answer is that invocation's, now or when it has ended."""

    invocation: Invocation


Submitted = Dispatched | Queued | Known


class Settled(Enum):
    """The outcome of a write that ends or requeues an execution."""

    SETTLED = "settled"
    FENCED = "fenced"
    """A later attempt or an earlier settlement owns the invocation: nothing was charged."""
