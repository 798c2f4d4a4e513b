"""A service of workers that only counts, as dispatcher.model.scaling.FleetScaler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.scaling import ServiceCount


@dataclass
class CountedService:
    """`fails`: the requests that are refused. `kept` and `leavers`: the arguments of each `keep`."""

    desired: int = 0
    fails: set[str] = field(default_factory=set)
    reads: int = 0
    sets: list[int] = field(default_factory=list)
    kept: list[list[str]] = field(default_factory=list)
    leavers: list[str] = field(default_factory=list)

    async def count(self) -> ServiceCount:
        self._check("count")
        self.reads += 1
        return ServiceCount(self.desired, self.desired)

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        self._check("keep")
        self.kept.append(sorted(workers))
        self.leavers.append(leaver)

    async def set(self, workers: int) -> None:
        self._check("set")
        self.desired = workers
        self.sets.append(workers)

    def _check(self, request: str) -> None:
        if request in self.fails:
            raise StoreUnavailable(f"no {request}")
