"""Reads a shard's log without writing, and keeps the state and the last minute's figures.

It needs the store, but no running process. It shows the state after all entries that were written before `catch_up`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.facts import WorkerSet
from dispatcher.model.usage import UsageRow
from dispatcher.monitor.picture import Picture, WorkerPicture, tenants_of
from dispatcher.monitor.plan_picture import PlanPicture, needed_now, plan_picture
from dispatcher.monitor.recent import Recent
from dispatcher.monitor.tier_picture import TierPicture, first_arrivals, tier_pictures
from dispatcher.policies.planning.autoscaling import WorkersNeeded
from dispatcher.ports import Clock, Log, Store
from dispatcher.service.follower import Follower
from dispatcher.settings.config import Config
from dispatcher.shard.settings import ShardSettings


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
        shard = self._copy.shard
        waits_since = first_arrivals(shard.state, lambda call: call.tenant.name)
        return Picture(
            position=shard.position,
            at=shard.at,
            leader=shard.leader,
            epoch=shard.epoch,
            tenants=tenants_of(shard.tenant_rows(), self._recent.of_tenants(now), waits_since, now),
            workers=tuple(self._worker(worker) for worker in self.workers()),
        )

    def plan(self, now: float) -> PlanPicture:
        """Return the plan of the fleet, and what waits for which model, at `now` (Unix seconds)."""
        return plan_picture(self._copy.shard.state, self._copy.shard.position, now)

    def tiers(self, now: float) -> Sequence[TierPicture]:
        """Return what waits and runs in each tier at `now` (Unix seconds)."""
        return tier_pictures(self._copy.shard.state, now)

    def needed(self, now: float) -> WorkersNeeded:
        """Return the number of workers at which no entitled work is late. The search may take seconds."""
        return needed_now(self._copy.shard.state, now)

    def workers(self) -> Sequence[WorkerSet]:
        """Return the workers in the log, ordered by name."""
        return sorted(self._copy.shard.fleet(), key=lambda worker: worker.worker)

    def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> list[UsageRow]:
        """Return the totals of a tenant (None: of all tenants) that the shard holds, both hours included."""
        rows = self._copy.shard.usage_rows()
        return [row for row in rows if tenant in (None, row.tenant) and first_hour <= row.hour <= last_hour]

    def _worker(self, worker: WorkerSet) -> WorkerPicture:
        return WorkerPicture(
            worker=worker.worker,
            url=worker.url,
            model=worker.model,
            state=worker.state,
            slots=worker.slots,
            running=len(self._copy.shard.state.workers[worker.worker].running),
            service_per_s=worker.service_per_s,
            bytes_per_token=worker.bytes_per_token,
        )
