"""Expected outcomes, as values. Exceptions are for errors; these are the ordinary ways in which things go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dispatcher.model.fleet import Worker
from dispatcher.model.invocation import Invocation


class Written(Enum):
    """What a conditional write of the store came to."""

    DONE = "done"
    CONFLICT = "conflict"
    """Another's write came first and the condition no longer holds: look again."""
    EXISTS = "exists"
    """The invocation is already there: a retry with the same idempotency key."""
    FULL = "full"
    """The line is at its bound."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Admitted at once: execute `invocation` on its slot at `worker`."""

    invocation: Invocation
    worker: Worker


@dataclass(frozen=True, slots=True)
class Queued:
    """Accepted and waiting: `position` counts from 1 within the tenant's line, `wait_s` is an estimate."""

    invocation: Invocation
    position: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """Seen before under the same id: answer from what is, or becomes, of that invocation."""

    invocation: Invocation


Submitted = Dispatched | Queued | Known


class Settled(Enum):
    SETTLED = "settled"
    FENCED = "fenced"
    """A later attempt or an earlier settlement owns this invocation: nothing was charged."""
