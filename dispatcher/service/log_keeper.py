"""Keeps a pool's log when no gate process does: makes its snapshots before its entries expire, and changes its format.

The gate processes beside the workers make the snapshots. After the last worker has left, other processes may still
write entries, for example for calls that arrive and wait. These entries expire after days like all others. So a process
that runs regularly checks once an hour for entries that no snapshot contains.

The format of a log changes when an operator confirms that every process reads it (model/formats.py). The leader knows
what the connected processes read. Those that are not connected announce nothing: functions of an earlier alias version,
a sweep, `headgate top` of an older installation. So only the operator can say that all of them were updated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dispatcher.model.commands import Refused, UseFormat
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.formats import NEWEST
from dispatcher.ports import Clock, GateLink, Ids, Log, UsageStore
from dispatcher.service.gate.replica import Replica
from dispatcher.service.snapshots import UNSAVED_S, Snapshots
from dispatcher.shard.settings import ShardSettings


class LogKeeper:
    def __init__(
        self, log: Log, projections: UsageStore, settings: ShardSettings, shard: str, clock: Clock, ids: Ids
    ) -> None:
        self._log, self._settings, self._clock, self._ids = log, settings, clock, ids
        self._snapshots = Snapshots(log, projections, shard, clock, ids)
        self._looked_at: float | None = None

    async def keep(self) -> bool:
        """Write a snapshot and its projections if one is due. Return whether it was written.

        The check is made at most once in UNSAVED_S. Raises StoreUnavailable, LogGap, LogCorrupt.
        """
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < UNSAVED_S:
            return False
        replica = await self._read_log()
        self._looked_at = now
        if not self._snapshots.is_due(replica):
            return False
        await replica.commit([await self._snapshots.write(replica)])
        return True

    async def save(self) -> None:
        """Write a snapshot and its projections now. Raises StoreUnavailable, LogGap, LogCorrupt."""
        replica = await self._read_log()
        await replica.commit([await self._snapshots.write(replica)])

    async def _read_log(self) -> Replica:
        replica = Replica(self._log, self._settings, self._clock, self._ids.new())
        await replica.catch_up()
        return replica


_WAIT_S = 10.0


async def use_format(link: GateLink, keepers: Sequence[LogKeeper], wanted: int) -> None:
    """Let a pool's logs have this format from their next entries on. Nothing happens if they have it already.

    After the way back to an older format, save a snapshot in it: an older process begins with that, and reads no entry
    before it.

    Raises ConfigurationError if the leader is of a version that does not know the question, if a connected process does
    not read the format, or if this version does not write it. Raises StoreUnavailable, LogGap, LogCorrupt.
    """
    if await link.readers() is None:
        raise ConfigurationError(
            "the leader does not say what its clients read, so it is of an older version: update all gates first"
        )
    try:
        async with asyncio.timeout(_WAIT_S):
            outcome = await link.do(UseFormat(wanted))
    except TimeoutError:
        raise ConfigurationError("the leader does not answer; nothing is known to have changed: try again") from None
    if isinstance(outcome, Refused):
        raise ConfigurationError(outcome.message)
    if wanted < NEWEST:
        for keeper in keepers:
            await keeper.save()
