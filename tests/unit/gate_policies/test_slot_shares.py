"""A worker's slots among the shards of its pool: never more than it has, by weight, and soon where they are needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.slot_shares import IDLE_PART, ShardNeed, SlotShares, divide

NOTHING = ShardNeed(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def need(**fields: Any) -> ShardNeed:
    return NOTHING._replace(**fields)


def divided(*needs: ShardNeed, slots: float = 100.0) -> list[float]:
    return divide(needs, slots, [1.0] * len(needs))


BUSY = need(heavy=50, waiting=1000, weight=1.0)


def test_waiting_tenants_share_by_weight_over_all_shards() -> None:
    assert divided(BUSY, BUSY._replace(weight=3.0)) == pytest.approx([25.0, 75.0])


def test_light_tenants_keep_what_runs() -> None:
    assert divided(BUSY, BUSY._replace(light=20, weight=3.0)) == pytest.approx([20.0, 80.0])


def test_a_shard_gets_no_more_than_its_calls_need() -> None:
    assert divided(BUSY, need(heavy=1, waiting=9, weight=9.0)) == pytest.approx([90.0, 10.0])


def test_shards_without_calls_keep_a_small_part_together() -> None:
    assert divided(BUSY, NOTHING, NOTHING) == pytest.approx([100 * (1 - IDLE_PART), 50 * IDLE_PART, 50 * IDLE_PART])


def test_there_is_a_slot_for_a_first_call_that_comes_at_once() -> None:
    assert divided(BUSY, NOTHING)[1] >= 1.0


def test_what_nobody_needs_is_for_everyone() -> None:
    assert divided(need(light=40), NOTHING) == pytest.approx([70.0, 30.0])


def test_a_guarantee_goes_first() -> None:
    promised = need(heavy=5, waiting=100, weight=1.0, promised_per_s=600.0, capacity_per_s=100.0)
    flood = need(heavy=5, waiting=1000, weight=99.0, capacity_per_s=900.0)
    assert divided(promised, flood) == pytest.approx([60.0, 40.0])
    assert divided(promised._replace(waiting=10), flood) == pytest.approx([15.0, 85.0])


def test_deferred_calls_get_what_is_left() -> None:
    batch = need(deferred=1000)
    assert divided(need(heavy=20, waiting=40, weight=1.0), batch) == pytest.approx([60.0, 40.0])
    assert divided(BUSY, batch) == pytest.approx([100.0, 0.0], abs=1e-6)


def flooded_worker(name: str) -> SlotShares:
    """Return a worker of a pool of 20: all its 16 slots run calls of shard 0, and shard 1 has none."""
    shares = SlotShares(name, 2)
    shares.note(1, NOTHING, 0, 0.0)
    for _ in range(2):
        shares.slots(0, 16)
        shares.note(0, FLOOD, 16, 0.0)
    return shares


FLOOD = need(slots=320, heavy=320, waiting=1000, weight=1.0)
FIRST = need(waiting=1, weight=1.0)
WORKERS = [f"w{number}" for number in range(20)]


@pytest.mark.parametrize("name", ["w1", "w2", "w3", "w5"])  # others keep the slot for first calls
def test_a_first_call_gets_the_next_slot_of_any_worker(name: str) -> None:
    shares = flooded_worker(name)
    shares.slots(1, 16)
    shares.note(1, FIRST, 0, 0.1)
    assert shares.urgent(16) == [0], "it has to give a slot back"
    assert shares.slots(0, 16) == 15
    assert shares.slots(1, 16) == 0
    shares.note(0, FLOOD, 16, 0.1)
    assert shares.urgent(16) == [], "the slot is in use"
    assert shares.is_urgent_end(0, 16)
    assert shares.slots(0, 16) == 15
    shares.note(0, FLOOD, 15, 0.2)
    assert shares.urgent(16) == [1]
    assert shares.slots(1, 16) == 1


def test_a_slot_that_a_shard_leaves_goes_back_at_once() -> None:
    shares = flooded_worker("w1")
    shares.note(1, FIRST, 0, 0.1)
    shares.slots(0, 16)
    shares.note(0, FLOOD, 15, 0.2)
    assert shares.slots(1, 16) == 1
    shares.note(1, NOTHING._replace(slots=1), 0, 0.3)
    assert shares.urgent(16) == [1]
    assert shares.slots(1, 16) == 0
    shares.note(1, NOTHING, 0, 0.3)
    assert shares.urgent(16) == [0]
    assert shares.slots(0, 16) == 16


def test_a_call_that_does_not_wait_for_a_slot_gets_none() -> None:
    """The shard has slots enough: the call waits for its process."""
    given = 0
    for name in WORKERS:
        shares = flooded_worker(name)
        shares.note(1, FIRST._replace(slots=3), 0, 0.1)
        shares.slots(0, 16)
        shares.note(0, FLOOD, 15, 0.2)
        given += shares.slots(1, 16)
    assert given <= 3


def test_of_two_floods_each_gives_by_its_part() -> None:
    gave = [0, 0]
    for name in [f"w{number}" for number in range(200)]:
        shares, parts = SlotShares(name, 3), (12, 4)
        for wanting in (NOTHING, FIRST):
            for shard, part in enumerate(parts):
                shares.note(shard, need(slots=20 * part, heavy=20 * part, waiting=500, weight=float(part)), part, 0.0)
            shares.note(2, wanting, 0, 0.0)
            told = [shares.slots(shard, 16) for shard in (0, 1)]
        gave = [all_gave + part - slots for all_gave, part, slots in zip(gave, parts, told, strict=True)]
    assert gave[0] == pytest.approx(3 * gave[1], rel=0.3)


needs = st.builds(
    ShardNeed,
    st.integers(0, 50), st.integers(0, 30), st.integers(0, 30), st.integers(0, 500), st.integers(0, 500),
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e12),
)  # fmt: skip


@given(st.lists(needs, min_size=1, max_size=16), st.floats(0.5, 1e5), st.data())
def test_a_division_adds_up(all_needs: list[ShardNeed], slots: float, data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.floats(0.5, 2.0), min_size=len(all_needs), max_size=len(all_needs)))
    found = divide(all_needs, slots, factors)
    assert sum(found) == pytest.approx(slots)
    assert min(found) >= 0


@given(st.integers(1, 8), st.integers(0, 40), st.lists(st.tuples(st.integers(0, 7), st.booleans(), needs), max_size=60))
def test_the_shards_never_have_more_slots_than_the_worker(
    shards: int, slots: int, answers: list[tuple[int, bool, ShardNeed]]
) -> None:
    """Each shard dispatches whenever it may; answers get lost."""
    shares, now_s = SlotShares("w", shards), 0.0
    told, held = [0] * shards, [0] * shards
    for shard, is_answered, wanted in answers:
        shard %= shards
        told[shard] = shares.slots(shard, slots)
        assert told[shard] >= 0
        now_s += 0.1
        # without an answer the report may have arrived or not
        held[shard] = max(held[shard] // 2, told[shard])
        assert sum(held) <= slots
        if is_answered:
            shares.note(shard, wanted, held[shard], now_s)


STEP_S = 0.25


@dataclass
class Pool:
    """Workers before shards with floods of calls of equal length. Each tenant is a shard's only one."""

    weights: list[float]
    workers: list[int]
    seed: int = 0
    rates: list[float] = field(default_factory=list)
    """Service of a slot in a second, by shard; empty: 1 everywhere."""
    served: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        shards, random = len(self.weights), Random(self.seed)
        self.random = random
        self.shares = [SlotShares(f"w{number}", shards) for number in range(len(self.workers))]
        self.told = [[0] * shards for _ in self.workers]
        self.running = [[list[float]() for _ in range(shards)] for _ in self.workers]
        """The ends of the calls, by worker and shard."""
        self.waiting = [10_000 if weight else 0 for weight in self.weights]
        self.served = [0.0] * shards
        self.begun = [0.0] * shards
        self.now_s = 0.0

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STEP_S
            for worker in range(len(self.workers)):
                self._step(worker)

    def _step(self, worker: int) -> None:
        for shard, running in enumerate(self.running[worker]):
            rate = self.rates[shard] if self.rates else 1.0
            self.served[shard] += STEP_S * rate * len(running)
            running[:] = [end for end in running if end > self.now_s]
            if self.random.random() < STEP_S:
                self._report(worker, shard)
            while len(running) < self.told[worker][shard] and self.waiting[shard]:
                self.waiting[shard] -= 1
                length_s = self.random.expovariate(1 / 5)
                running.append(self.now_s + length_s)
                self.begun[shard] += length_s * rate / self.weights[shard]
        assert sum(map(len, self.running[worker])) <= self.workers[worker]

    def _report(self, worker: int, shard: int) -> None:
        self.told[worker][shard] = self.shares[worker].slots(shard, self.workers[worker])
        runs, slots = self.count(shard), sum(told[shard] for told in self.told)
        waiting, weight = self.waiting[shard], self.weights[shard]
        found = need(
            slots=slots, light=0 if waiting else runs, heavy=runs if waiting else 0, waiting=waiting,
            weight=weight if waiting else 0.0, virtual_time=self.begun[shard],
        )  # fmt: skip
        self.shares[worker].note(shard, found, len(self.running[worker][shard]), self.now_s)

    def count(self, shard: int) -> int:
        return sum(len(running[shard]) for running in self.running)

    @property
    def shares_served(self) -> list[float]:
        return [each / sum(self.served) for each in self.served]


@pytest.mark.parametrize(
    "pool",
    [
        Pool([1, 1], [16] * 4),
        Pool([1, 2, 4], [12] * 5, 1),
        Pool([1] * 4, [2] * 6, 2),
        Pool([1, 3], [5], 3),
        Pool([1, 1, 1], [12] * 6, 4, [1.0, 3.0, 0.5]),
    ],
)
def test_shares_come_close_to_the_weights(pool: Pool) -> None:
    """Also if a slot gives one shard more service than another, and if whole slots cannot be divided by the weights."""
    pool.run(200.0)
    pool.served = [0.0] * len(pool.weights)
    pool.waiting = [10_000] * len(pool.weights)
    pool.run(400.0)
    due = [weight / sum(pool.weights) for weight in pool.weights]
    assert pool.shares_served == pytest.approx(due, rel=0.05)


def test_a_shard_that_begins_gets_its_slots_and_leaves_them_again() -> None:
    pool = Pool([1, 1], [16] * 8)
    pool.waiting[1] = 0
    pool.run(60.0)
    assert pool.count(0) >= 124
    pool.waiting[1] = 100_000
    pool.run(60.0)
    assert pool.count(1) == pytest.approx(64, abs=10)
    pool.waiting[1] = 0
    pool.run(60.0)
    assert pool.count(0) >= 124


def test_a_shard_that_does_not_answer_keeps_its_slots_until_its_lease_ends() -> None:
    shares = SlotShares("w", 2)
    for _ in range(5):
        for shard in (0, 1):
            told = shares.slots(shard, 8)
            shares.note(shard, BUSY._replace(slots=4), told, 0.0)
    assert [shares.slots(shard, 8) for shard in (0, 1)] == [4, 4]
    shares.lose(1)
    assert shares.slots(0, 8) >= 7
