"""The table is throttled for a minute, or gone for ten: callers get errors with a time, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from dispatcher.model.commands import Accept, Offer, Outcome, Over, Refused, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Accepted, Ended
from dispatcher.shard.codec import decode_entry
from tests.support.gate.service_world import SHARD, World, accept, end, report

CALLS_PER_S = 5
ANSWERED_S = 2.0
"""A caller gets its 503 within this time even if its command was being written when the table went away."""
THROTTLED_S = 5.0
"""The same while a tenth of the requests succeeds: each entry that is written begins the patience anew."""
RECOVERED_S = 10.0


@dataclass
class Traffic:
    """A front whose calls each run for a second on one worker. `answers`: by second, what its callers got."""

    world: World
    answers: list[tuple[float, str, float]] = field(default_factory=list)
    """When a call began, its outcome, and how long the caller waited for it."""
    live: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.front, self.worker = self.world.link("front"), self.world.link("worker")

    def start(self) -> list[asyncio.Task[None]]:
        host = self.world.host
        return [host("worker").spawn(self._reports()), host("front").spawn(self._arrivals())]

    async def _reports(self) -> None:
        while True:
            await self._until_written(report("w", 50, tuple(sorted(self.live))))
            await asyncio.sleep(1.0)

    async def _until_written(self, command: object) -> Outcome:
        while True:
            try:
                return await self.worker.do(command)  # type: ignore[arg-type]
            except StoreUnavailable:
                await asyncio.sleep(0.5)

    async def _arrivals(self) -> None:
        while True:
            self.world.host("front").spawn(self._call())
            await asyncio.sleep(1 / CALLS_PER_S)

    async def _call(self) -> None:
        name, began = self.front.new_id(), self.world.clock.monotonic()
        command: Accept = accept(name, "front", self.world.clock.now(), floor=self.front.floor)
        try:
            outcome: Outcome | None = await self.front.do(command)
            waited = self.world.clock.monotonic() - began
            if isinstance(outcome, Waiting):
                outcome = await self.front.news(name, 300.0)
        except StoreUnavailable as error:
            waited = self.world.clock.monotonic() - began
            kind = "unavailable" if error.retry_after_s else "no time"
            self.answers.append((began, kind, waited))
            return
        if isinstance(outcome, Refused):
            assert outcome.retry_after_s > 0
        elif isinstance(outcome, Offer):
            await self.world.on("worker", self._worked(outcome))
        self.answers.append((began, type(outcome).__name__, waited))

    async def _worked(self, offer: Offer) -> None:
        attempt = f"{offer.id}#{offer.attempt}"
        self.live.add(attempt)
        await asyncio.sleep(1.0)
        outcome = await self._until_written(end(offer.id, offer.attempt))
        assert isinstance(outcome, Over)
        self.live.discard(attempt)

    def between(self, first: float, last: float) -> Counter[str]:
        return Counter(kind for began, kind, _ in self.answers if first <= began < last)


async def running(seed: int) -> tuple[World, Traffic]:
    world = World(seed)
    for name in ("g1", "g2"):
        await world.gate(name)
    await asyncio.sleep(3.0)
    traffic = Traffic(world)
    traffic.start()
    await asyncio.sleep(10.0)
    return world, traffic


def check_once(world: World) -> None:
    """No call was accepted or charged twice."""
    facts = [fact for data in world.data.logs[SHARD].entries.values() for fact in decode_entry(data).facts]
    accepted = Counter(fact.id for fact in facts if isinstance(fact, Accepted))
    ended = Counter(fact.id for fact in facts if isinstance(fact, Ended))
    assert set(accepted.values()) <= {1}
    assert set(ended.values()) <= {1}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("seconds", "fails"), [(60.0, 0.9), (600.0, 1.0)], ids=["throttled", "gone"])
async def test_callers_get_an_error_with_a_time_and_the_service_is_back_at_once(
    seed: int, seconds: float, fails: float
) -> None:
    world, traffic = await running(seed)
    before = world.clock.monotonic()
    assert set(traffic.between(before - 6, before - 3)) == {"Offer"}
    for faults in world.faults.values():
        faults.fails = fails
    await asyncio.sleep(seconds)
    for faults in world.faults.values():
        faults.fails = 0.0
    back = world.clock.monotonic()
    await asyncio.sleep(RECOVERED_S)
    settled = world.clock.monotonic()
    await asyncio.sleep(60.0)
    assert set(traffic.between(settled, settled + 50)) == {"Offer"}
    assert max(waited for began, _, waited in traffic.answers if began < back) <= (
        ANSWERED_S if fails == 1.0 else THROTTLED_S
    )
    assert max(waited for began, _, waited in traffic.answers if began >= settled) <= 1.0
    during = traffic.between(before + 2, back - ANSWERED_S)
    if fails == 1.0:
        assert set(during) == {"unavailable"}
        assert during.total() == pytest.approx((back - before - 2 - ANSWERED_S) * CALLS_PER_S, rel=0.02)
    check_once(world)
    assert len(traffic.live) <= 2 * CALLS_PER_S, "the attempts that ran when the table went away have ended"
