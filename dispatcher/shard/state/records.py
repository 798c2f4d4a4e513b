"""The records of a shard besides tenants and calls: workers with the causes of their failures, processes and usage.
And when a call is due.

A worker rests only if its failed attempts have several causes. The requests of one tenant may all fail by their own
fault, so all failures of one tenant are one cause. The next word is the worker's: it probes its engine after a failure,
and reports itself as draining while the engine is sick (gpu_worker/service/health). The gate's rule is for what a
worker cannot see, and for workers that do not probe.

| reason of the return | cause |
| --- | --- |
| failed | the tenant of the call |
| unreachable, lost, and any other | the call: no request causes this, so each counts |
| refused | none: a worker that refuses is alive, and knows why |
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from dispatcher.model.call import made
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import CAPACITY_MAX
from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.fleet import DRAIN_S
from dispatcher.policies.planning.slo import NORMAL

RECENT = 8
"""The number of a worker's last attempts for which the state remembers whether they failed."""
FAILED_MOST = 4
"""A worker rests if so many of its last RECENT attempts failed, each for another cause."""
FOR_A_TIME = frozenset({"resting", "retiring"})
"""The states of workers that end at a time, and not with a heartbeat."""
SLOW_SWAPS = 3.0
ORDER_MARGIN_S = 30.0
"""A worker has the time of a drain, of so many swaps, and this margin to load a model."""
UNREACHED_KEPT = 8
"""The number of workers that a process could not reach and that are remembered for it."""
ACCEPTED_KEPT = 1024
"""A process has at least so many sequence numbers before those below its floor are dropped."""
NO_PROCESS = ""
"""The name of the state's record of the calls that no process holds. Such a call is launched when it gets a slot: an
executor starts, and holds the call. If an attempt is not begun, perhaps no executor can start. Then the record becomes
silent like a process, and its waiting calls are suspended. Otherwise each of them in turn would take a slot for the
time of an offer, for nothing, while the calls of other tenants wait. When an executor holds one of the calls, all of
them get offers again (accept.py). Until then the leader starts an executor for one of them from time to time, without a
slot (service/gate/courier.py)."""


def due_at(call: Call) -> float:
    """Return when the call is due. One without a class is due like the default class."""
    return call.terms.due_at or NORMAL.due_at(call.arrived_at)


class Worker:
    """A worker in the log. `configure` replaces `config`; `config` itself never changes.

    The fields that every decision reads are attributes of this class too: a read takes a fifth of the time of a field
    of a named tuple.
    """

    __slots__ = (
        "causes",
        "config",
        "expected_per_s",
        "failures",
        "load",
        "model",
        "name",
        "ordered_at",
        "paid_until",
        "running",
        "slots",
        "slots_open",
        "swap_s",
        "url",
    )

    def __init__(self, config: WorkerSet) -> None:
        self.load = ""
        """The model that it should load now; empty: it keeps its model."""
        self.ordered_at = 0.0
        """When it last got such an order, or the order was withdrawn, in Unix seconds."""
        self.paid_until = 0.0
        """It pays for its swaps with service until then (planning/fleet.py, `paid_until`)."""
        self.configure(config)
        self.running: dict[str, Call] = {}
        """The calls that hold its slots, by id."""
        self.failures = 0
        """One bit for each of the last RECENT attempts, 1 if it failed."""
        self.causes: tuple[str, ...] = ()
        """The causes of the last attempts, the latest first; empty for one that shows no fault of the worker. Not more
        than RECENT, and none after the oldest cause."""

    def configure(self, config: WorkerSet) -> None:
        self.config = config
        self.name, self.model, self.url, self.slots = config.worker, config.model, config.url, config.slots
        self.swap_s = {each.model: each.swap_s for each in config.models}
        """The seconds that each of its models takes to load; empty for a worker that keeps its model."""
        expected = zip(config.models, config.expected_per_s, strict=False)
        self.expected_per_s = {each.model: rate for each, rate in expected if rate}
        """The capacity that it expects with each of its models, in service units a second; absent if unknown."""
        self._open()

    def order(self, model: str, at: float) -> None:
        self.load, self.ordered_at = model, at
        self._open()

    def _open(self) -> None:
        is_open = self.config.state == "serving" and not self.load
        self.slots_open = self.slots if is_open else 0
        """The number of its slots if it gets new work, otherwise 0."""

    @property
    def capacity_per_s(self) -> float:
        """Its measured capacity with its model, in service units a second, or the expected one; 0 if unknown."""
        measured = self.config.service_per_s
        return measured if 0 < measured <= CAPACITY_MAX else self.expected_per_s.get(self.model, 0.0)

    def capacity_with(self, model: str) -> float:
        """Return its measured capacity with one of its models, or the expected one; 0 if unknown."""
        measured = next((each.service_per_s for each in self.config.models if each.model == model), 0.0)
        return measured if 0 < measured <= CAPACITY_MAX else self.expected_per_s.get(model, 0.0)

    @property
    def order_ends_at(self) -> float:
        """When its order is withdrawn if it is not carried out, in Unix seconds."""
        return self.ordered_at + self._order_s(self.swap_s.get(self.load, 0.0))

    def _order_s(self, swap_s: float) -> float:
        """Return how long an order may take whose swap is expected to take `swap_s`."""
        return DRAIN_S + SLOW_SWAPS * max(0.0, swap_s) + ORDER_MARGIN_S

    @property
    def last_swap_s(self) -> float | None:
        """The time from the last order to the report of the model; 0 without an order, None if it was withdrawn.

        A longer time than an order may take (order_ends_at) is no swap: the worker was gone, or loaded the model later.
        """
        if not self.ordered_at:
            return 0.0
        took_s = self.config.loaded_at - self.ordered_at
        return took_s if 0.0 <= took_s <= self._order_s(max(self.swap_s.values(), default=0.0)) else None

    @property
    def changes_at(self) -> float:
        """When its rest, retirement or order ends, in Unix seconds; infinity if it has none."""
        rests_until = self.config.until if self.config.state in FOR_A_TIME else inf
        return min(rests_until, self.order_ends_at) if self.load else rests_until

    @property
    def target(self) -> str:
        """The model that it has, or that it should load."""
        return self.load or self.model

    @property
    def free(self) -> int:
        """The number of its slots that may be given to calls now. It may be negative after a reduction of its slots."""
        return self.slots - len(self.running) if self.config.state == "serving" and not self.load else 0

    @property
    def is_failing(self) -> bool:
        return len({cause for cause in self.causes if cause}) >= FAILED_MOST


class Process:
    """A process that holds callers, or the record of NO_PROCESS. It is remembered for a while after its last call
    (forgetting.py)."""

    __slots__ = ("accepted", "accepted_most", "calls", "floor", "seen_at", "silent", "unreached")

    def __init__(self, seen_at: float) -> None:
        self.calls: dict[str, Call] = {}
        """The calls that it holds, by id."""
        self.silent = False
        self.floor = 0
        """The process repeats no command for a call with a lower sequence number."""
        self.accepted: set[int] = set()
        """The sequence numbers of its accepted calls: all from the floor on, and some below it."""
        self.accepted_most = ACCEPTED_KEPT
        """If `accepted` has more numbers, those below the floor are dropped."""
        self.seen_at = seen_at
        self.unreached: tuple[str, ...] = ()
        """The workers that it could not reach since it last reached one."""

    def repeatable(self) -> set[int]:
        """Return the accepted numbers from the floor on."""
        return {number for number in self.accepted if number >= self.floor}

    def drop_accepted(self) -> None:
        """Drop the numbers below the floor. The next time is when there are twice as many, so it is O(1) a call."""
        self.accepted = self.repeatable()
        self.accepted_most = max(ACCEPTED_KEPT, 2 * len(self.accepted))


class Usage(NamedTuple):
    """Totals of one tenant, application and hour. `position`: the position of the last entry that changed them."""

    requests: int
    input_tokens: int
    output_tokens: int
    service: float
    position: int
    cached_tokens: int = 0
    """The part of the input tokens that engines found in their prefix caches."""

    def plus(self, input_tokens: int, output_tokens: int, service: float, position: int, cached_tokens: int) -> Usage:
        """Return the totals with one more call."""
        requests, read, generated, served, _, cached = self
        tokens = (read + input_tokens, generated + output_tokens)
        return made(Usage, (requests + 1, *tokens, served + service, position, cached + cached_tokens))


NO_USAGE = Usage(0, 0, 0, 0.0, 0, 0)


_BY_THE_REQUEST = frozenset({"failed"})
_NO_FAULT = frozenset({"refused"})


def cause_of(call: Call, reason: str) -> str:
    """Return the cause of an attempt that was returned for `reason`; empty if it shows no fault of the worker."""
    if reason in _NO_FAULT:
        return ""
    return f"tenant {call.tenant.name}" if reason in _BY_THE_REQUEST else f"call {call.id}#{call.attempt}"


def next_causes(causes: tuple[str, ...], cause: str) -> tuple[str, ...]:
    """Return the causes with that of one more attempt. Attempts before the oldest cause are dropped."""
    if not cause and not causes:
        return ()
    kept = (cause, *causes)[:RECENT]
    while kept and not kept[-1]:
        kept = kept[:-1]
    return kept
