"""Watches for EC2's notice that a spot instance ends, about two minutes before. A process of the instance writes it to
a file (infra/spot_notice.sh), because containers do not reach the instance's metadata.

Source: EC2's user guide, "Spot Instance interruption notices": {"action": "terminate", "time": "2026-11-25T22:08:00Z"}.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dispatcher.ports import Clock

READ_EVERY_S = 1.0
LAST_S = 10.0
"""So long before the instance's end, what still runs is given back to the gate."""

logger = logging.getLogger("headgate.worker")


@dataclass(eq=False)
class SpotNotice:
    """`path`: of the file, which may not exist. `announced` is set at a notice, `last_moment` LAST_S before the end."""

    path: Path
    clock: Clock
    announced: asyncio.Event = field(default_factory=asyncio.Event)
    last_moment: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self) -> None:
        """Wait for a notice and then for the last moment. Return after that."""
        while (ends_at := self._ends_at()) is None:
            await self.clock.sleep(READ_EVERY_S)
        left_s = ends_at - self.clock.now()
        logger.warning("the instance ends in %.0f s: draining", left_s)
        self.announced.set()
        await self.clock.sleep(max(0.0, left_s - LAST_S))
        self.last_moment.set()

    def _ends_at(self) -> float | None:
        """Return the announced end in Unix seconds. None without a notice, or with one of an earlier life of the
        instance: its end is over."""
        try:
            ends_at = datetime.fromisoformat(json.loads(self.path.read_bytes())["time"]).timestamp()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.error("the spot notice cannot be read: %s", type(error).__name__)
            return None
        return ends_at if ends_at > self.clock.now() else None
