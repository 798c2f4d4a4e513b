"""The facts of a shard's log, and the entries that hold them. Each entry is written once. Pure.

A fact states an event and the values that are valid after it. Replay assigns these values and decides nothing, so two
versions of the code agree about every past entry. An entry holds no prompt, no answer and no key.

Units: costs and `served` in service units, rates in service units a second, times in Unix seconds. `clocks` are the
numbers that the shard's order keeps for a tenant. Only the order knows their meaning (dispatcher/policies/orders).

An entry's facts follow the order in which the shard decides (shard/decide.py): first all commands but arrivals, then
arrivals, then the models that workers should load, then dispatches, then the arrivals whose tenant's queue was full
before these dispatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dispatcher.model.call import HEAD, CallTerms, TenantConfig, made, younger_terms
from dispatcher.model.fleet import GroupPlan, LoadableModel, WorkerPlan
from dispatcher.model.formats import OLDEST


class OrderSet(NamedTuple):
    """The order of the whole log, and the log's first fact. Another order cannot use these clocks. A later one has the
    same order, and changes the format from its own entry on (formats.py)."""

    order: str
    format: int = OLDEST


class WorkerSet(NamedTuple):
    """A worker joined or changed. A worker with `state` other than "serving" gets no new work."""

    worker: str
    url: str
    model: str
    slots: int
    context_tokens: int
    bytes_per_token: float
    service_per_s: float
    """Its measured capacity in service units a second; 0 while unknown."""
    state: str
    """"serving"; "draining"; "silent" (it sends no heartbeats; its attempts are kept); "resting" (too many of its
    attempts failed); "retiring" (it will be stopped: commands.Retire)."""
    until: float = 0.0
    """The time at which "resting" or "retiring" ends."""
    capabilities: tuple[str, ...] = ()
    """What its engine supports, sorted: the names are in fleet.py."""
    models: tuple[LoadableModel, ...] = ()
    """See commands.Report."""
    loaded_at: float = 0.0
    """Since when it has `model`, in Unix seconds; 0 for a worker that keeps its model."""
    expected_per_s: tuple[float, ...] = ()
    """See commands.Report; empty if it is unknown for all models."""


class ModelOrdered(NamedTuple):
    """The worker should load this model, and gets no new calls until it reports the model. An empty `model` withdraws
    the order."""

    worker: str
    model: str
    calls: tuple[str, ...] = ()
    """The waiting calls that pay for the swap at their ends, one of each tenant."""
    service: float = 0.0
    """What each of them pays."""


class Planned(NamedTuple):
    """The plan from here on (shard/swapping.py). `made_at`: Unix seconds of the state that was planned."""

    made_at: float
    workers: tuple[WorkerPlan, ...]
    groups: tuple[GroupPlan, ...]


class WorkerLost(NamedTuple):
    """A worker left or its lease ended. Its attempts were returned or ended before this fact."""

    worker: str


class ProcessSet(NamedTuple):
    """The state of a process that holds callers: "present", or "silent" (its waiting calls are suspended)."""

    process: str
    """Empty: the calls that no process holds (shard/state/records.py, NO_PROCESS)."""
    state: str


class ProcessLost(NamedTuple):
    """A process is gone. Its durable calls have no holder from here on, its other waiting calls are cancelled, and its
    other running calls end when their attempts do."""

    process: str


class TenantSet(NamedTuple):
    """A tenant's share and limits from here on."""

    tenant: str
    config: TenantConfig
    clocks: tuple[float, ...]

    def row(self) -> tuple[Any, ...]:
        """Return the row of an entry."""
        return (self.tenant, *self.config, self.clocks)

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> TenantSet:
        """Return the fact of a whole row."""
        return made(cls, (row[0], made(TenantConfig, row[1:7]), row[7]))


class Accepted(NamedTuple):
    """A call joined its tenant's queue."""

    id: str
    floor: int
    """The lowest sequence number that the process of `id` may still repeat."""
    process: str
    """The process that holds the caller; empty if no process does (then the call is durable)."""
    terms: CallTerms
    """They are those of commands.Accept, with the cost and the application that are charged."""
    priority: float
    clocks: tuple[float, ...]

    def row(self) -> tuple[Any, ...]:
        """Return the row of an entry."""
        call_id, floor, process, terms, priority, clocks = self
        return (call_id, floor, process, *terms[:HEAD], priority, clocks, *younger_terms(terms))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Accepted:
        """Return the fact of a whole row."""
        return made(cls, (*row[:3], made(CallTerms, (*row[3:10], *row[12:])), row[10], row[11]))


class Dispatched(NamedTuple):
    """A waiting call got a slot of `worker`, as attempt number `attempt`."""

    id: str
    worker: str
    attempt: int
    in_profile: bool
    rate_per_s: float
    weight: float
    clocks: tuple[float, ...]
    virtual_time: float


class Returned(NamedTuple):
    """An attempt was returned, and its call has its old place in the queue. `counted`: the attempt counts towards
    ATTEMPTS_MAX. `reason`: of commands.Return, "lost", or "no_route" (shard/fold.py)."""

    id: str
    attempt: int
    reason: str
    counted: bool
    clocks: tuple[float, ...]


class Ended(NamedTuple):
    """A dispatched call ended with its true service."""

    id: str
    attempt: int
    outcome: str
    """"done", "failed", "cancelled" or "expired"."""
    input_tokens: int
    output_tokens: int
    served: float
    clocks: tuple[float, ...]
    virtual_time: float
    first_token_s: float = 0.0
    cached_tokens: int = 0
    """See commands.End for the last two."""


class Dropped(NamedTuple):
    """A waiting call left its queue. `outcome`: "cancelled", "expired" or "failed".

    If an earlier attempt stored its answer before it was returned, the call ends with that answer. Then `outcome` and
    the other fields are those of the attempt, as in Ended. The tenant's clocks do not change, because the attempt was
    refunded.
    """

    id: str
    outcome: str
    attempt: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    served: float = 0.0
    cached_tokens: int = 0


class Held(NamedTuple):
    """`process` now holds a durable call (empty: no process does). The earlier holder still gets the call's end."""

    id: str
    process: str


class Cancelling(NamedTuple):
    """The caller of a dispatched call has left. If its attempt is returned, the call ends."""

    id: str


class UsageSaved(NamedTuple):
    """The totals of usage that did not change since `position` are in the projection. Old ones may leave the state."""

    position: int


Fact = (
    OrderSet | WorkerSet | ModelOrdered | Planned | WorkerLost | ProcessSet | ProcessLost | TenantSet | Accepted
    | Dispatched | Returned | Ended | Dropped | Held | Cancelling | UsageSaved
)  # fmt: skip


class Entry(NamedTuple):
    """One position of the log."""

    position: int
    at: float
    """The time of its decisions in Unix seconds, never below that of the entry before."""
    writer: str
    """The process that wrote the entry, and the number of entries that it has written. Each entry has another value."""
    leader: str
    """The address of the process that decides for the others; empty if there is none."""
    epoch: int
    """The number of takeovers so far."""
    facts: tuple[Fact, ...]
