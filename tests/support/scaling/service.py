"""A service of workers that only counts, as dispatcher.model.fleet.FleetScaler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import ServiceCount


@dataclass
class CountedService:
    desired: int = 0
    fails: bool = False
    reads: int = 0
    sets: list[int] = field(default_factory=list)

    async def count(self) -> ServiceCount:
        if self.fails:
            raise StoreUnavailable("no service")
        self.reads += 1
        return ServiceCount(self.desired, self.desired)

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        """Nothing to do: no worker stops."""

    async def set(self, workers: int) -> None:
        self.desired = workers
        self.sets.append(workers)
