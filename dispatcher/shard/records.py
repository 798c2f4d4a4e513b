"""The records of a shard besides tenants and calls: workers, processes and usage."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.model.facts import WorkerSet, made
from dispatcher.policies.orders.queues import Call

RECENT = 8
"""How many of a worker's last attempts are remembered, failed or not."""
FAILED_MOST = 4
"""A worker with this many failures among them rests."""
ACCEPTED_KEPT = 1024
"""Sequence numbers of a process that stay at least before those below its floor are dropped."""


class Worker:
    """A worker as the log knows it. `config` is replaced by `configure`, never changed.

    What every decision reads of it has attributes of its own: they take a fifth of the time of a named tuple's.
    """

    __slots__ = ("config", "failures", "model", "name", "running", "slots", "slots_open", "url")

    def __init__(self, config: WorkerSet) -> None:
        self.configure(config)
        self.running: dict[str, Call] = {}
        """Its attempts, by the id of their call."""
        self.failures = 0
        """One bit for each of the last RECENT attempts; set: it failed."""

    def configure(self, config: WorkerSet) -> None:
        self.config = config
        self.name, self.model, self.url, self.slots = config.worker, config.model, config.url, config.slots
        self.slots_open = config.slots if config.state == "serving" else 0
        """Its slots if it gets new work, otherwise 0."""

    @property
    def free(self) -> int:
        """Slots that may be given to a call now; negative after its slots were reduced."""
        return self.slots - len(self.running) if self.config.state == "serving" else 0

    @property
    def is_failing(self) -> bool:
        return self.failures.bit_count() >= FAILED_MOST


class Process:
    """A process that holds callers. It is remembered a while after its last call."""

    __slots__ = ("accepted", "accepted_most", "calls", "floor", "seen_at", "silent")

    def __init__(self, seen_at: float) -> None:
        self.calls: dict[str, Call] = {}
        """The calls with a caller that it holds."""
        self.silent = False
        self.floor = 0
        """It repeats no command for a call with a lower sequence number."""
        self.accepted: set[int] = set()
        """Sequence numbers that were accepted: all from the floor on, and some below it."""
        self.accepted_most = ACCEPTED_KEPT
        """With more numbers, those below the floor are dropped."""
        self.seen_at = seen_at

    def repeatable(self) -> set[int]:
        """Return the accepted numbers that its floor does not speak for."""
        return {number for number in self.accepted if number >= self.floor}

    def drop_accepted(self) -> None:
        """Drop the numbers that its floor speaks for. Next when there are twice as many as stay, so O(1) a call."""
        self.accepted = self.repeatable()
        self.accepted_most = max(ACCEPTED_KEPT, 2 * len(self.accepted))


class Usage(NamedTuple):
    """Totals of one tenant, application and hour. `position`: of the last entry that changed them."""

    requests: int
    input_tokens: int
    output_tokens: int
    service: float
    position: int

    def plus(self, input_tokens: int, output_tokens: int, service: float, position: int) -> Usage:
        """Return the totals with one more call."""
        requests, read, generated, served, _ = self
        return made(Usage, (requests + 1, read + input_tokens, generated + output_tokens, served + service, position))


NO_USAGE = Usage(0, 0, 0, 0.0, 0)
