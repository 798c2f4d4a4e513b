"""Decides whether a follower takes over from a leader that it suspects to be gone, and when its turn comes.

The first heir comes first, then the second, then the others. If it is not certain that the leader is gone, the follower
reads the log twice: a leader that writes is not gone, only this process cannot reach it.
"""

from __future__ import annotations

from math import inf
from zlib import crc32

from dispatcher.service.link.finder import Fleet, Leadership, read_leadership

RANK_S = (0.0, 0.06)
"""Before it takes over, the first and the second heir wait this long, the others OTHERS_S or up to twice that."""
OTHERS_S = 0.3
STILL_WRITES_S = 0.05
"""The time between two reads of the log that show whether a leader which sends no receipts still writes."""
HOLD_OFF_S = 3.0
"""For this time after its takeover a leader is not replaced for missing receipts. So leadership does not flap."""
RETRY_S = 0.2


class Succession:
    """A follower's place among those that can take over."""

    def __init__(self, fleet: Fleet) -> None:
        self._log, self._clock = fleet.log, fleet.clock
        self._epoch_began_at = -inf

    def began(self) -> None:
        """Note that another process took over just now."""
        self._epoch_began_at = self._clock.monotonic()

    async def may_succeed(self, known: Leadership, name: str, rank: int, *, is_certain: bool) -> bool:
        """Return whether to take over, after this process's turn. Another process may have done so. If it is not
        certain that the leader is gone, it must have begun more than HOLD_OFF_S ago and write nothing within
        STILL_WRITES_S. `name`, `rank`: of this process. Raises StoreUnavailable, LogCorrupt."""
        await self._clock.sleep(turn_s(name, rank))
        now = await read_leadership(self._log)
        if now.epoch != known.epoch:
            return False
        if not is_certain:
            await self._clock.sleep(STILL_WRITES_S)
            later = await read_leadership(self._log)
            still_writes = later.position > now.position and later.by_leader
            is_young = self._clock.monotonic() - self._epoch_began_at < HOLD_OFF_S
            if later.epoch != known.epoch or still_writes or is_young:
                await self._clock.sleep(RETRY_S)
                return False
        return True


def turn_s(name: str, rank: int) -> float:
    """Return the seconds until the turn of a process. `rank`: among the heirs, from 0; -1 if it is none."""
    if 0 <= rank < len(RANK_S):
        return RANK_S[rank]
    return OTHERS_S * (1 + crc32(name.encode()) / 2**32)
