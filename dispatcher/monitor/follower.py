"""Reads a shard's log without writing: its state, the last minute's figures, and the exact usage up to now.

It needs the store, but no running process. It shows the state after all entries that were written before `catch_up`.
Usage is read from the projection in the store and the later totals in the logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dispatcher.model.facts import Entry, WorkerSet
from dispatcher.model.shards import SHARDS_MAX, shard_name
from dispatcher.model.usage import HOUR_S, UsageRow
from dispatcher.monitor.picture import Picture, Recent, take_picture
from dispatcher.operations.usage import merged
from dispatcher.policies.planning.autoscaling import WorkersNeeded, workers_needed
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.ports import Clock, Log, Store, UsageStore
from dispatcher.service.gate.follower import Delivery, Follower
from dispatcher.service.gate.questions import usage
from dispatcher.settings.config import Config
from dispatcher.shard.proposals import plan_input
from dispatcher.shard.settings import ShardSettings

_WORKERS_MAX = 64
"""The number of workers needed is searched up to this, or up to twice the fleet."""
_MOVES = 2_000
"""The planner's budget for each number of workers that is tried."""


def open_follower(store: Store, config: Config, clock: Clock, shard: str = "") -> LogFollower:
    """Return a follower of the log of a shard of the pool, which has read no entry yet. Empty: its only shard, or the
    first one."""
    shard = shard or config.shard_names[0]
    return LogFollower(store.log(shard), config.shard_settings(), clock, shard)


def open_followers(store: Store, config: Config, clock: Clock) -> list[LogFollower]:
    """Return a follower of the log of each of the pool's shards."""
    return [open_follower(store, config, clock, shard) for shard in config.shard_names]


async def find_left_out(store: Store, config: Config, clock: Clock) -> dict[str, int]:
    """Return how many calls each shard has that the pool had before and that no process of this configuration serves.

    Only the shards with a log and calls are in the result, by name. Raises StoreUnavailable, LogGap, LogCorrupt.
    """
    found = {}
    for number in range(config.shards, SHARDS_MAX):
        follower = open_follower(store, config, clock, shard_name(config.pool, number))
        await follower.catch_up()
        if not follower.position:
            break
        if follower.calls:
            found[follower.shard] = follower.calls
    return found


class EntryReader(Protocol):
    """It is shown entries. `restart`: a snapshot replaced the entries that follow."""

    def note(self, entry: Entry) -> None: ...

    def restart(self) -> None: ...


class LogFollower:
    """A read-only copy of the shard. A picture shows the state at the last `catch_up`, so call `catch_up` first."""

    def __init__(self, log: Log, settings: ShardSettings, clock: Clock, shard: str) -> None:
        self.shard = shard
        self._recent = Recent()
        self._copy = Follower(log, settings, clock)
        self.watch(self._recent)

    def watch(self, reader: EntryReader) -> None:
        """Show each later entry to the reader too."""
        note, restart = self._copy.on_entry, self._copy.on_load

        def show(entry: Entry, deliveries: list[Delivery]) -> None:
            note(entry, deliveries)
            reader.note(entry)

        def show_load() -> None:
            restart()
            reader.restart()

        self._copy.on_entry, self._copy.on_load = show, show_load

    async def catch_up(self) -> None:
        """Fold all entries written so far. Raises StoreUnavailable, LogGap, LogCorrupt."""
        await self._copy.catch_up()

    @property
    def position(self) -> int:
        """All entries below this position of the log were read."""
        return self._copy.shard.position

    @property
    def calls(self) -> int:
        """The number of calls that wait or run."""
        return len(self._copy.shard.state.calls)

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
        most = max(_WORKERS_MAX, 2 * len(problem.workers)) if kinds else 0
        if not most:
            return WorkersNeeded(None, "no worker serves")
        return workers_needed(
            problem.backlogs, problem.workers, tuple(kinds.values()), now, workers_max=most, moves=_MOVES
        )  # fmt: skip

    def workers(self) -> Sequence[WorkerSet]:
        """Return the workers in the log, ordered by name."""
        return sorted(self._copy.shard.fleet(), key=lambda worker: worker.worker)

    def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> list[UsageRow]:
        """Return the totals of a tenant (None: of all tenants) that the shard holds, both hours included."""
        return usage(self._copy.shard, tenant, first_hour, last_hour)


HOURS = 12
"""So many hours are shown; the last one is the hour that has not ended."""


async def usage_rows(
    store: UsageStore, followers: Sequence[LogFollower], tenant: str | None, first_hour: int, last_hour: int
) -> Sequence[UsageRow]:
    """Return the rows of a tenant (None: of all) in all pools, also in those that are not configured any more.

    Both hours are included. The rows are ordered by hour, tenant and application.
    """
    return merged(await _pairs(store, followers, tenant, first_hour, last_hour))


async def pool_usage_rows(
    store: UsageStore, follower: LogFollower, first_hour: int, last_hour: int
) -> Sequence[UsageRow]:
    """Return the rows of all tenants in the follower's pool alone, as `usage_rows`."""
    pairs = await _pairs(store, [follower], None, first_hour, last_hour)
    return merged(pair for pair in pairs if pair[0] == follower.shard)


async def _pairs(
    store: UsageStore, followers: Sequence[LogFollower], tenant: str | None, first_hour: int, last_hour: int
) -> list[tuple[str, UsageRow]]:
    # The logs are read first. A shard drops a row only after it is projected, so no row is missing in both reads.
    held: list[tuple[str, UsageRow]] = []
    for follower in followers:
        await follower.catch_up()
        held += [(follower.shard, row) for row in follower.usage(tenant, first_hour, last_hour)]
    return [*await store.usage(tenant, first_hour, last_hour), *held]


@dataclass(frozen=True, slots=True)
class TenantHours:
    """The totals of a tenant's calls that ended in the hours. `by_hour`: service units, the oldest hour first."""

    tenant: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    by_hour: tuple[float, ...] = (0.0,) * HOURS

    @property
    def service(self) -> float:
        return sum(self.by_hour)


def last_hours(now: float) -> tuple[int, int]:
    """Return the first and the last of the shown hours at `now` (Unix seconds), as Unix seconds // 3600."""
    last = int(now // HOUR_S)
    return last - HOURS + 1, last


def tenants_by_hour(rows: Iterable[UsageRow], now: float) -> dict[str, TenantHours]:
    """Return the totals of each tenant with a row in the shown hours, by its name."""
    first, last = last_hours(now)
    found: dict[str, TenantHours] = {}
    for row in rows:
        if first <= row.hour <= last:
            found[row.tenant] = _plus(found.get(row.tenant, TenantHours(row.tenant)), row, row.hour - first)
    return found


def total_of(tenants: Iterable[TenantHours]) -> TenantHours:
    """Return the sum of all tenants, without a name."""
    listed = tuple(tenants)
    return TenantHours(
        "",
        sum(each.requests for each in listed),
        sum(each.input_tokens for each in listed),
        sum(each.output_tokens for each in listed),
        tuple(sum(each.by_hour[hour] for each in listed) for hour in range(HOURS)),
    )


def _plus(total: TenantHours, row: UsageRow, hour: int) -> TenantHours:
    by_hour = list(total.by_hour)
    by_hour[hour] += row.service
    return TenantHours(
        total.tenant,
        total.requests + row.requests,
        total.input_tokens + row.input_tokens,
        total.output_tokens + row.output_tokens,
        tuple(by_hour),
    )
