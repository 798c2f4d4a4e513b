"""The sweep's use case: it reads the service, decides and sets the number; a broken service is reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.scaling import FleetLoad, ScaleReport, ServiceCount
from dispatcher.operations.scale import ScaleSettings
from dispatcher.operations.scaling import Scaling

ZERO = ScaleSettings(workers_min=0, workers_max=4, scale_to_zero=True)


def load(ready: int, waiting: int = 0, leaving: int = 0) -> FleetLoad:
    return FleetLoad(ready, leaving, 0, {"standard": waiting}, 500.0 * waiting, 0.0, 1_000.0 if ready else 0.0)


@dataclass
class Service:
    desired: int = 0
    fails: set[str] = field(default_factory=set)
    sets: list[int] = field(default_factory=list)

    async def count(self) -> ServiceCount:
        if "count" in self.fails:
            raise StoreUnavailable("no count")
        return ServiceCount(self.desired, self.desired)

    async def set(self, workers: int) -> None:
        if "set" in self.fails:
            raise StoreUnavailable("no set")
        self.desired = workers
        self.sets.append(workers)


@dataclass
class StillClock:
    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


async def test_the_number_is_set_when_it_changes_and_only_then() -> None:
    service, clock = Service(), StillClock()
    scaling = Scaling(service, ZERO, clock)
    assert await scaling.sweep(load(0)) == ScaleReport(0)
    assert await scaling.sweep(load(0, waiting=3)) == ScaleReport(1)
    assert await scaling.sweep(load(1)) == ScaleReport(1)
    clock.seconds = 700.0
    assert await scaling.sweep(load(1)) == ScaleReport(0)
    assert service.sets == [1, 0]


async def test_a_draining_worker_in_the_log_delays_the_next() -> None:
    service, clock = Service(3), StillClock()
    scaling = Scaling(service, ZERO, clock)
    await scaling.sweep(load(3))
    clock.seconds = 700.0
    assert (await scaling.sweep(load(3))).wanted == 2
    assert (await scaling.sweep(load(2, leaving=1))).wanted == 2
    assert (await scaling.sweep(load(2))).wanted == 1


async def test_without_a_service_the_number_is_only_returned() -> None:
    scaling = Scaling(None, ZERO, StillClock())
    assert await scaling.sweep(load(0, waiting=3)) == ScaleReport(1)


async def test_a_service_that_cannot_be_used_is_reported() -> None:
    service = Service(fails={"count"})
    scaling = Scaling(service, ZERO, StillClock())
    assert await scaling.sweep(load(0, waiting=1)) == ScaleReport(None, "no count")
    service.fails = {"set"}
    assert await scaling.sweep(load(0, waiting=1)) == ScaleReport(1, "no set")
    service.fails = set()
    assert await scaling.sweep(load(0, waiting=1)) == ScaleReport(1)
    assert service.sets == [1]
