"""The commands that processes send to a shard, and their outcomes. Pure.

Every command may be repeated. The shard recognizes a repeated `Accept` by its id (`process-sequence`), and most other
commands by their attempt. It answers a repetition with the present state.

A *call* is one invocation in the log. The process that *holds* a call holds the connection of its caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dispatcher.model.call import HEAD, CallTerms, TenantConfig, made, younger_terms
from dispatcher.model.fleet import GroupPlan, LoadableModel, WorkerPlan
from dispatcher.policies.slot_shares import ShardNeed

_SEQUENCE_BASE = 36


class Accept(NamedTuple):
    """Put a call into its tenant's queue.

    A repetition for a durable call makes `process` the holder of the call (facts.Held). The earlier holder still gets
    the call's Over. If `process` is empty, no process holds the call, and its dispatch starts an executor for it
    (ports.Launcher). `floor` is the lowest sequence number that `process` may still repeat, or 0 if `id` belongs to
    another process.
    """

    id: str
    floor: int
    process: str
    terms: CallTerms
    config: TenantConfig

    def row(self) -> tuple[Any, ...]:
        """Return the row of a frame."""
        call_id, floor, process, terms, config = self
        return (call_id, floor, process, *terms[:HEAD], *config, *younger_terms(terms))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Accept:
        """Return the command of a whole row."""
        # Names take less time than slices: every arrival is decoded here.
        call_id, floor, process, a, b, c, d, e, f, g, version, weight, rate, burst, tier, waiting, h, i, j, k, m = row
        terms = made(CallTerms, (a, b, c, d, e, f, g, h, i, j, k, m))
        config = made(TenantConfig, (version, weight, rate, burst, tier, waiting))
        return made(cls, (call_id, floor, process, terms, config))


class Cancel(NamedTuple):
    """End a call because its caller has left ("cancelled") or its deadline has passed ("expired")."""

    id: str
    outcome: str


class Return(NamedTuple):
    """Give back an attempt that does not run and never will. The sender is its worker, or the only process that could
    begin the attempt.

    `reason`: "not_begun" (the offer's time passed), "declined" (the caller left), "unreachable" (the worker could not
    be called), "refused" (the worker has no room), "failed" (the engine failed before the caller had a token).
    """

    id: str
    attempt: int
    reason: str
    worker: str = ""


class End(NamedTuple):
    """Report the end of an attempt, with its input and output tokens. `outcome` is one of those of facts.Ended.

    `answer`: the answer of a durable call (JSON text), which is stored before the end is written. `first_token_s`:
    seconds from the order's arrival at the worker to its first token, by the worker's clock; 0 without a token. From it
    and the times of `Accepted` and `Dispatched`, a reader of the log computes the latency.
    """

    id: str
    attempt: int
    outcome: str
    input_tokens: int
    output_tokens: int
    tenant: str = ""
    answer: str = ""
    first_token_s: float = 0.0
    unbegun: bool = False
    """True if the attempt was never begun. The sender is the only process that could begin it, and reports the tokens
    that the caller got from an earlier attempt."""
    kept: bool = False
    """True if the store holds this answer. Then it ends the call even if the attempt was returned meanwhile."""
    cached_tokens: int = 0
    """The input tokens that the engine found in its prefix cache, a part of `input_tokens`."""
    adapter_loaded: bool = False
    """True if the engine loaded a LoRA adapter for the attempt: its tenant pays for that."""


class Report(NamedTuple):
    """A worker's heartbeat. `live`: the attempts, as `id#attempt`, that run on it or are in its outbox."""

    worker: str
    url: str
    model: str
    slots: int
    context_tokens: int
    bytes_per_token: float
    service_per_s: float
    draining: bool
    kv_use: float
    queue_length: int
    live: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    """What the engine supports, sorted: the names are in fleet.py."""
    models: tuple[LoadableModel, ...] = ()
    """Every model that the worker can load, sorted by name, with `model` among them. Empty for a worker that keeps its
    model."""
    expected_per_s: tuple[float, ...] = ()
    """The capacity that the worker probably has with each of `models`, in their order, from batches that were not full;
    0 while unknown."""


class Leave(NamedTuple):
    """Remove a worker that signs off. Its attempts are returned or ended."""

    worker: str


class Retire(NamedTuple):
    """Give a worker no new work, because it will be stopped when its calls have ended. It keeps these calls.

    The sweep repeats this once a minute. Without a repetition the worker gets new work again after RETIRE_S
    (shard/workers.py), so a sweep that dies takes no worker away. `is_over`: give the worker new work again, at once.
    """

    worker: str
    is_over: bool = False


class Present(NamedTuple):
    """Report that a process can be reached (again). Its calls get offers."""

    process: str


class Silent(NamedTuple):
    """Report that a process or a worker (`is_worker`) sends no messages. It may still live, but gets no new work."""

    name: str
    is_worker: bool


class Gone(NamedTuple):
    """Remove a process or a worker (`is_worker`) that is dead.

    This has an effect only if the process or the worker is silent in the log. Otherwise it may have sent a message that
    the sender of this command does not know yet. Waiting calls of the process are cancelled, except durable ones.
    Attempts of the worker are returned or ended.
    """

    name: str
    is_worker: bool


class Status(NamedTuple):
    """Ask for the state of a call."""

    id: str


class Tick(NamedTuple):
    """Decide what depends on the time alone: drop calls after their deadline, let rested workers serve again,
    dispatch."""


class Saved(NamedTuple):
    """Report that all totals of usage which did not change since `position` are in the projection, the table of usage.

    The process that makes snapshots sends this.
    """

    position: int


class Plan(NamedTuple):
    """Propose a plan of models and orders for the fleet. It is advice (shard/swapping.py). `made_at`: Unix seconds of
    the state that was planned."""

    made_at: float
    workers: tuple[WorkerPlan, ...]
    groups: tuple[GroupPlan, ...]


class UseFormat(NamedTuple):
    """Write the log in this format from the next entry on (formats.py). The sender knows that all processes read it."""

    format: int


Command = (
    Accept | Cancel | Return | End | Report | Leave | Retire | Present | Gone | Silent | Status | Tick | Saved | Plan
    | UseFormat
)  # fmt: skip


class Waiting(NamedTuple):
    """The call waits. `position` counts from 1 within its tenant's queue. `wait_s` and `wait_p90_s`: the 50 % and the
    90 % point of its wait from now until its dispatch (shard/waits/estimate.py); None if they are not known."""

    id: str
    position: int
    wait_s: float | None = None
    wait_p90_s: float | None = None


class Offer(NamedTuple):
    """The call has a slot on this worker. The process that holds the call must begin `attempt` within OFFER_S seconds
    (gpu_worker/service/agent.py)."""

    id: str
    attempt: int
    worker: str
    url: str
    position: int
    """The position of the entry that dispatched the call. A later offer has a higher position."""


class Over(NamedTuple):
    """The call has ended. `outcome` is one of those of facts.Ended and facts.Dropped. `attempt` is 0 if none ran."""

    id: str
    attempt: int
    outcome: str
    input_tokens: int = 0
    output_tokens: int = 0


class Unknown(NamedTuple):
    """The shard does not hold this call or attempt: it ended long ago, or never existed. The command charged
    nothing."""

    id: str


class Refused(NamedTuple):
    """The command was refused. `code`: machine-readable, such as "queue_full" or "deadline_out_of_reach"."""

    id: str
    code: str
    message: str
    retry_after_s: float


class Attempts(NamedTuple):
    """The answer to a worker's Report: the worker's attempts (`id#attempt`) in the log, before entry `position`.

    `load`: the model that the worker should load now; empty: it keeps its model. `need`: what the shard needs of the
    pool's slots; empty from the only shard of a pool, and from an older version.
    """

    worker: str
    position: int
    held: tuple[str, ...]
    load: str = ""
    need: tuple[ShardNeed, ...] = ()

    def row(self) -> tuple[Any, ...]:
        """Return the fields as they are sent: without an empty `need`, because a reader of format 5 knows none."""
        return self if self.need else self[:-1]


class Done(NamedTuple):
    """The command is done. There is no other answer."""


Outcome = Waiting | Offer | Over | Unknown | Refused | Attempts | Done


def call_id(process: str, sequence: int) -> str:
    """Return the id of the call with number `sequence` of a process."""
    digits, number = "", sequence
    while number:
        number, digit = divmod(number, _SEQUENCE_BASE)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return f"{process}-{digits or '0'}"


@lru_cache(1024)  # a decision parses an id several times
def parse_call_id(call_id: str) -> tuple[str, int]:
    """Return (process, sequence). Raises ValueError."""
    process, _, sequence = call_id.rpartition("-")
    return process, int(sequence, _SEQUENCE_BASE)
