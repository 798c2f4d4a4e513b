"""The sweep's use case: it reads the service, decides and sets the number; a broken service is reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from dispatcher.model.commands import Command, Done, Outcome, Retire
from dispatcher.model.fleet import FleetLoad, ScaleReport, WorkerLoad
from dispatcher.operations.scaling import Scaling
from dispatcher.operations.worker_count import ScaleSettings
from tests.conformance.store_world import FakeClock
from tests.support.scaling import CountedService

ZERO = ScaleSettings(workers_min=0, workers_max=4, scale_to_zero=True)


def load(ready: int, waiting: int = 0, leaving: int = 0) -> FleetLoad:
    return FleetLoad(ready, leaving, 0, {"standard": waiting}, 500.0 * waiting, 0.0, 1_000.0 if ready else 0.0)


def serving(*workers: WorkerLoad, per_s: float = 0.0) -> FleetLoad:
    """A pool without waiting calls. Each worker has two slots."""
    running = sum(each.running for each in workers)
    holding = min(len(workers), -(-running // 2))
    return FleetLoad(len(workers), 0, holding, {"standard": 0}, 0.0, per_s, 1_000.0, workers)


@dataclass
class Commands:
    """A link that only notes what is sent."""

    sent: list[Command] = field(default_factory=list)

    async def do(self, command: Command) -> Outcome:
        self.sent.append(command)
        return Done()


def scaling_of(
    service: CountedService | None, clock: FakeClock, settings: ScaleSettings = ZERO, link: Commands | None = None
) -> Scaling:
    return Scaling(service, cast("Any", link or Commands()), settings, clock)


async def test_the_number_is_set_when_it_changes_and_only_then() -> None:
    service, clock = CountedService(), FakeClock(0.0)
    scaling = scaling_of(service, clock)
    assert await scaling.sweep(load(0)) == ScaleReport(0)
    assert await scaling.sweep(load(0, waiting=3)) == ScaleReport(1)
    assert await scaling.sweep(load(1)) == ScaleReport(1)
    clock.time = 700.0
    assert await scaling.sweep(load(1)) == ScaleReport(0)
    assert service.sets == [1, 0]


async def test_a_draining_worker_in_the_log_delays_the_next() -> None:
    service, clock = CountedService(3), FakeClock(0.0)
    scaling = scaling_of(service, clock)
    await scaling.sweep(load(3))
    clock.time = 700.0
    assert (await scaling.sweep(load(3))).wanted == 2
    assert (await scaling.sweep(load(2, leaving=1))).wanted == 2
    assert (await scaling.sweep(load(2))).wanted == 1


async def test_without_a_service_the_number_is_only_returned() -> None:
    scaling = scaling_of(None, FakeClock(0.0))
    assert await scaling.sweep(load(0, waiting=3)) == ScaleReport(1)


async def test_a_service_that_cannot_be_used_is_reported() -> None:
    service = CountedService(fails={"count"})
    scaling = scaling_of(service, FakeClock(0.0))
    assert await scaling.sweep(load(0, waiting=1)) == ScaleReport(None, "no count")
    service.fails = {"set"}
    assert await scaling.sweep(load(0, waiting=1)) == ScaleReport(1, "no set")
    service.fails = set()
    assert await scaling.sweep(load(0, waiting=1)) == ScaleReport(1)
    assert service.sets == [1]


# ── Retirement ─────────────────────────────────────────────────────────────────────────────────────────────────────


class AtOnce(ScaleSettings):
    hold_s = 0.0


AT_ONCE = AtOnce(workers_min=0, workers_max=4, scale_to_zero=True)


async def test_the_worker_with_the_fewest_calls_retires_and_is_stopped_when_they_have_ended() -> None:
    service, link = CountedService(3), Commands()
    scaling = scaling_of(service, FakeClock(0.0), AT_ONCE, link)
    others = WorkerLoad("a", 1), WorkerLoad("b", 2)
    await scaling.sweep(serving(*others, WorkerLoad("c", 2)))
    assert link.sent == [], "two workers could not hold the calls"
    await scaling.sweep(serving(*others, WorkerLoad("c", 1, is_retiring=True)))
    await scaling.sweep(serving(WorkerLoad("a", 1), WorkerLoad("b", 1), WorkerLoad("c", 2, is_retiring=True)))
    assert (link.sent, service.sets) == ([Retire("c"), Retire("c")], []), "the one that retires goes on"
    assert await scaling.sweep(serving(*others, WorkerLoad("c", 0, is_retiring=True))) == ScaleReport(2)
    assert (service.kept, service.leavers, service.sets) == ([["a", "b"]], ["c"], [2])


async def test_a_worker_without_calls_is_stopped_at_once() -> None:
    service, link = CountedService(3), Commands()
    load = serving(WorkerLoad("a", 2), WorkerLoad("b", 0), WorkerLoad("c", 1))
    await scaling_of(service, FakeClock(0.0), AT_ONCE, link).sweep(load)
    assert (link.sent, service.kept, service.sets) == ([], [["a", "c"]], [2])


async def test_a_retirement_goes_on_in_a_sweep_without_memory() -> None:
    service, link = CountedService(2), Commands()
    load = serving(WorkerLoad("a", 0), WorkerLoad("b", 1, is_retiring=True))
    await scaling_of(service, FakeClock(0.0), AT_ONCE, link).sweep(load)
    assert (link.sent, service.sets) == ([Retire("b")], [])


async def test_a_worker_retires_last_if_no_other_has_its_model() -> None:
    service = CountedService(2)
    load = serving(WorkerLoad("a", 0, is_last=True), WorkerLoad("b", 0))
    await scaling_of(service, FakeClock(0.0), AT_ONCE).sweep(load)
    assert service.kept == [["a"]]


async def test_a_retiring_worker_serves_again_if_the_load_returns() -> None:
    service, link = CountedService(2), Commands()
    load = serving(WorkerLoad("a", 2), WorkerLoad("b", 1, is_retiring=True), per_s=1_500.0)
    assert await scaling_of(service, FakeClock(0.0), AT_ONCE, link).sweep(load) == ScaleReport(2)
    assert (link.sent, service.sets) == ([Retire("b", is_over=True)], [])


async def test_a_worker_that_the_service_is_stopping_keeps_retiring() -> None:
    service, link = CountedService(1), Commands()
    load = serving(WorkerLoad("a", 2), WorkerLoad("b", 0, is_retiring=True))
    await scaling_of(service, FakeClock(0.0), AT_ONCE, link).sweep(load)
    assert (link.sent, service.sets) == ([], [])


async def test_while_a_worker_starts_all_that_serve_are_kept() -> None:
    service = CountedService(3)
    await scaling_of(service, FakeClock(0.0), AT_ONCE).sweep(serving(WorkerLoad("a", 0), WorkerLoad("b", 1)))
    assert (service.kept, service.leavers, service.sets) == ([["a", "b"]], [""], [2])


async def test_without_protection_the_number_is_not_lowered() -> None:
    service = CountedService(2, fails={"keep"})
    report = await scaling_of(service, FakeClock(0.0), AT_ONCE).sweep(serving(WorkerLoad("a", 0), WorkerLoad("b", 0)))
    assert report == ScaleReport(1, "no keep")
    assert service.sets == []
