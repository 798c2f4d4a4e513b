"""Reads a shard's log without writing, and keeps the state and the last minute's figures.

It needs the store, but no running process. It shows the state after all entries that were written before `catch_up`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.facts import WorkerSet
from dispatcher.model.usage import UsageRow
from dispatcher.monitor.picture import Picture, take_picture
from dispatcher.monitor.recent import Recent
from dispatcher.policies.planning.autoscaling import WorkersNeeded, workers_needed
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.ports import Clock, Log, Store
from dispatcher.service.gate.follower import Follower
from dispatcher.service.gate.questions import usage
from dispatcher.settings.config import Config
from dispatcher.shard.plan.input import plan_input
from dispatcher.shard.settings import ShardSettings

WORKERS_MAX = 64
"""The number of workers needed is searched up to this, or up to twice the fleet."""
MOVES = 2_000
"""The planner's budget for each number of workers that is tried."""


def open_follower(store: Store, config: Config, clock: Clock) -> LogFollower:
    """Return a follower of the pool's log. It has read no entry yet."""
    return LogFollower(store.log(config.shard), config.shard_settings(), clock, config.shard)


class LogFollower:
    """A read-only copy of the shard. A picture shows the state at the last `catch_up`, so call `catch_up` first."""

    def __init__(self, log: Log, settings: ShardSettings, clock: Clock, shard: str) -> None:
        self.shard = shard
        self._recent = Recent()
        self._copy = Follower(log, settings, clock)
        self._copy.on_entry = lambda entry, _: self._recent.note(entry)
        self._copy.on_load = self._recent.restart

    async def catch_up(self) -> None:
        """Fold all entries written so far. Raises StoreUnavailable, LogGap, LogCorrupt."""
        await self._copy.catch_up()

    @property
    def position(self) -> int:
        """All entries below this position of the log were read."""
        return self._copy.shard.position

    @property
    def log_format(self) -> int:
        """The format in which the log is written (model/formats.py)."""
        return self._copy.shard.state.format

    def picture(self, now: float) -> Picture:
        """Return the state, and the figures of the window that ends at `now` (Unix seconds)."""
        return take_picture(self._copy.shard, self._recent.of_tenants(now), now)

    def needed(self, now: float) -> WorkersNeeded:
        """Return the smallest number of workers at which no entitled work is late. Workers of the kinds that the fleet
        has can be added. The search may take seconds."""
        problem = plan_input(self._copy.shard.state, {}, now)
        kinds: dict[str, FleetWorker] = {worker.kind: worker for worker in problem.workers}
        most = max(WORKERS_MAX, 2 * len(problem.workers)) if kinds else 0
        if not most:
            return WorkersNeeded(None, "no worker serves")
        return workers_needed(
            problem.backlogs, problem.workers, tuple(kinds.values()), now, workers_max=most, moves=MOVES
        )  # fmt: skip

    def workers(self) -> Sequence[WorkerSet]:
        """Return the workers in the log, ordered by name."""
        return sorted(self._copy.shard.fleet(), key=lambda worker: worker.worker)

    def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> list[UsageRow]:
        """Return the totals of a tenant (None: of all tenants) that the shard holds, both hours included."""
        return usage(self._copy.shard, tenant, first_hour, last_hour)
