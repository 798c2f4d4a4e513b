"""What processes ask of a shard, and what they are answered. Pure.

Every command may be repeated: the shard answers a repeated command with what is true now. `Accept` is named by its id
(`process-sequence`), the others by the attempt that they are about.
"""

from __future__ import annotations

from typing import NamedTuple

SEQUENCE_BASE = 36


class Accept(NamedTuple):
    """Put a call into its tenant's queue. `version` … `waiting_max`: the tenant's configuration as read.

    Repeated for a durable call, it makes `process` the holder of the call from now on (facts.Held); the process that
    held it before still gets its Over. An empty `process` lets the call go: if it waits, it is launched at its
    dispatch. `floor` counts only if `id` is of `process`.
    """

    id: str
    floor: int
    process: str
    tenant: str
    model: str
    cost: float
    deadline_at: float
    durable: bool
    app: str
    interaction: str
    version: int
    weight: float
    rate_per_s: float
    burst: float
    tier: str
    waiting_max: int


class Cancel(NamedTuple):
    """The caller has left, or its time is over. `outcome`: "cancelled" or "expired"."""

    id: str
    outcome: str


class Return(NamedTuple):
    """An attempt that will never run (again): its worker promises so, or the process that alone could begin it.

    `reason`: "not_begun" (the offer's time passed), "declined" (the caller left), "unreachable" (the worker could not
    be called), "refused" (the worker has no room), "failed" (the engine failed before the caller had a token).
    """

    id: str
    attempt: int
    reason: str
    worker: str = ""


class End(NamedTuple):
    """An attempt ended, with the tokens that it read and generated. `outcome` as in facts.Ended.

    `answer`: of a durable call, what to keep for its caller (JSON text); it is stored before the end is written.
    `first_token_s`: seconds from the order's arrival at the worker to its first token, by the worker's clock; 0 if it
    gave none. With the times of `Accepted` and `Dispatched` it is the latency that a reader of the log shows.
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
    """The attempt was never begun: the process that alone could begin it ends it with what its caller got before."""


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


class Leave(NamedTuple):
    """A worker signs off, or its lease is over. It runs nothing any more; what it held is returned or ended."""

    worker: str


class Present(NamedTuple):
    """A process holds callers and can be reached (again)."""

    process: str


class Gone(NamedTuple):
    """A process signs off, or is known to be dead."""

    process: str


class Silent(NamedTuple):
    """A process or a worker (`is_worker`) is not heard, and not known to be dead."""

    name: str
    is_worker: bool


class Status(NamedTuple):
    """Ask what the shard knows of a call."""

    id: str


class Tick(NamedTuple):
    """Decide what is due by the clock: deadlines, workers that have rested, slots that are free."""


class Saved(NamedTuple):
    """A process that makes snapshots has projected all totals of usage that did not change since `position`."""

    position: int


Command = Accept | Cancel | Return | End | Report | Leave | Present | Gone | Silent | Status | Tick | Saved


class Waiting(NamedTuple):
    """The call waits. `position` counts from 1 within its tenant's queue; `wait_s` is an estimate."""

    id: str
    position: int
    wait_s: float


class Offer(NamedTuple):
    """The call has a slot: the process with its request begins `attempt` on this worker within OFFER_S seconds."""

    id: str
    attempt: int
    worker: str
    url: str
    position: int
    """The position of the entry that dispatched it: a later offer has a higher one."""


class Over(NamedTuple):
    """The call has ended: `outcome` as in facts.Ended or facts.Dropped. Of `attempt`, or 0 if it never ran."""

    id: str
    attempt: int
    outcome: str
    input_tokens: int = 0
    output_tokens: int = 0


class Unknown(NamedTuple):
    """The shard has no such call, or no such attempt: it ended long ago or never was accepted. Nothing was charged."""

    id: str


class Refused(NamedTuple):
    """The command was refused. `code` as in errors.py; `limit` names the limit that is reached."""

    id: str
    code: str
    message: str
    retry_after_s: float


class Attempts(NamedTuple):
    """The answer to a worker's report: the attempts (`id#attempt`) that the log holds for it, as of `position`."""

    worker: str
    position: int
    held: tuple[str, ...]


class Done(NamedTuple):
    """The command has no other answer."""


Outcome = Waiting | Offer | Over | Unknown | Refused | Attempts | Done


def call_id(process: str, sequence: int) -> str:
    """Return the id of a process's call number `sequence`."""
    digits, number = "", sequence
    while number:
        number, digit = divmod(number, SEQUENCE_BASE)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return f"{process}-{digits or '0'}"


def parse_call_id(call_id: str) -> tuple[str, int]:
    """Return (process, sequence). Raises ValueError."""
    process, _, sequence = call_id.rpartition("-")
    return process, int(sequence, SEQUENCE_BASE)
