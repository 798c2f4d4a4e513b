"""In virtual time: no model waits for ever whatever a plan does, and swaps take at most half of a worker's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.policies.planning.fleet import (
    DRAIN_S,
    SWAPS_SAVED_S,
    FleetWorker,
    fallback_models,
    held_s,
    paid_until,
    residency_s,
)
from dispatcher.policies.planning.plan import make_plan
from tests.support.planning.fleets import NOW, backlog, group

TICK_S = 0.5


@dataclass
class Swapping:
    """A worker in virtual time. During a swap it has its new model already, as a FleetWorker has."""

    name: str
    swaps_s: dict[str, float]
    loaded: str
    ready_at: float = NOW
    swapped_s: float = 0.0
    last_swap_s: float | None = None
    paid_until: float = 0.0
    running: int = 0

    def seen(self, now: float) -> FleetWorker:
        rates, free_s = dict.fromkeys(self.swaps_s, 1_000.0), max(0.0, self.ready_at - now)
        last_swap_s = self.last_swap_s
        return FleetWorker(
            self.name, "gpu", self.loaded, self.ready_at, self.swaps_s, free_s, rates, 8,
            running=self.running, last_swap_s=last_swap_s, paid_until=self.paid_until,
        )  # fmt: skip

    def swap(self, model: str, now: float, drain_s: float) -> None:
        assert now >= self.ready_at, "a worker swaps to one model at a time"
        self.loaded = model
        self.swapped_s += self.swaps_s[model]
        self.last_swap_s = drain_s + self.swaps_s[model]
        self.ready_at = now + self.last_swap_s
        self.paid_until = paid_until(self.paid_until, now, self.last_swap_s)


@dataclass
class Waits:
    """Since when each model waits unloaded, and the most models that waited meanwhile."""

    waiting: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    under_way: dict[str, float] = field(default_factory=dict)


times = st.sampled_from([0.0, 0.5, 2.0, 6.0])
drains = st.sampled_from([0.0, 5.0, DRAIN_S])


@settings(max_examples=120, deadline=None)
@given(
    workers=st.integers(1, 3),
    models=st.integers(1, 6),
    swap_s=st.lists(times, min_size=6, max_size=6),
    drain_s=drains,
    restless=st.sampled_from([0.0, 0.02, 1.0]),
    is_planned=st.booleans(),
    seed=st.integers(0, 10**6),
)
@example(workers=3, models=3, swap_s=[0.0] * 6, drain_s=0.0, restless=1.0, is_planned=False, seed=3)
def test_a_model_that_waits_is_loaded_in_time_whatever_the_plan_does(
    workers: int, models: int, swap_s: list[float], drain_s: float, restless: float, is_planned: bool, seed: int
) -> None:
    """With a plan, or with swaps of another reason, a swap that has begun before the fallback begins adds one turn."""
    random = Random(seed)
    names = "abcdef"[:models]
    swaps_s = dict(zip(names, swap_s, strict=False))
    fleet = [
        Swapping(f"w{at}", swaps_s, random.choice(names), running=random.choice((0, 1, 8))) for at in range(workers)
    ]
    longest_s = max(swaps_s.values())
    rest_s = residency_s(longest_s, True) if is_planned else max(residency_s(longest_s, True), drain_s + longest_s)
    period_s = rest_s + drain_s + longest_s + TICK_S
    waits = Waits()
    for tick in range(600):
        now = NOW + tick * TICK_S
        _arrive_and_leave(names, waits, fleet, now, random)
        seen = [each.seen(now) for each in fleet]
        planned: dict[str, str] | None = {} if is_planned else None
        chosen = fallback_models(waits.waiting, seen, now, drain_s, expected_drain_s=drain_s, planned=planned)
        if random.random() < restless:
            chosen |= _any_swaps(seen, chosen, names, waits, now, random)
        for each in fleet:
            if chosen.get(each.name, each.loaded) != each.loaded:
                before = each.loaded
                each.swap(chosen[each.name], now, drain_s)
                if before in waits.waiting and all(other.loaded != before for other in fleet):
                    waits.waiting[before] = now
                    _begin(before, waits, fleet, now)
        for model in list(waits.began):
            waits.most[model] = max(waits.most[model], len(waits.waiting))
            if any(each.loaded == model and now >= each.ready_at for each in fleet):
                del waits.began[model]
            else:
                turns = ceil(waits.most[model] / workers) + (is_planned or restless > 0.0)
                back_s = drain_s + longest_s
                way_back_s = residency_s(back_s, True) + back_s if is_planned else 0.0
                bound_s = turns * period_s + waits.under_way[model] + way_back_s
                assert now - waits.began[model] <= bound_s


def _arrive_and_leave(names: str, waits: Waits, fleet: list[Swapping], now: float, random: Random) -> None:
    for model in names:
        if model in waits.waiting:
            if random.random() < 0.002:
                del waits.waiting[model]
                waits.began.pop(model, None)
        elif random.random() < 0.05:
            waits.waiting[model] = now
            if all(each.loaded != model for each in fleet):
                _begin(model, waits, fleet, now)


def _begin(model: str, waits: Waits, fleet: list[Swapping], now: float) -> None:
    waits.began[model], waits.most[model] = now, 0
    waits.under_way[model] = max(0.0, *(each.ready_at - now for each in fleet))


def _any_swaps(
    seen: list[FleetWorker], chosen: dict[str, str], names: str, waits: Waits, now: float, random: Random
) -> dict[str, str]:
    """Return what a wrong plan does: any swap of a worker for whose model nothing waits, or that residency allows."""
    wanted = {each.name: random.choice(names) for each in seen if each.name not in chosen and each.free_s == 0.0}
    return {
        each.name: model
        for each in seen
        if (model := wanted.get(each.name, each.loaded)) != each.loaded
        and (each.loaded not in waits.waiting or held_s(each, model, now, True) == 0.0)
    }


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(1, 3),
    swap_s=st.lists(times, min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
    is_deferred=st.booleans(),
)
@example(workers=2, swap_s=[0.5, 6.0, 0.0, 2.0], seed=0, is_deferred=False)
def test_swaps_take_half_of_the_time_and_half_a_minute_at_most_whatever_arrives(
    workers: int, swap_s: list[float], seed: int, is_deferred: bool
) -> None:
    """A minute of swaps is saved at the beginning (docs/gate.md)."""
    random = Random(seed)
    swaps_s = dict(zip("abcd", swap_s, strict=True))
    fleet = [Swapping(f"w{at}", swaps_s, random.choice("abcd")) for at in range(workers)]
    last = None
    for tick in range(120):
        now = NOW + tick
        model = "abcd"[tick // 2 % 4]
        slo_class, due_s = ("batch", 3600.0) if is_deferred and tick % 3 else ("normal", random.choice([-60.0, 5.0]))
        urgent = [group(model, now - NOW + due_s, seconds=4.0, slo_class=slo_class)]
        seen = [each.seen(now) for each in fleet]
        last = make_plan([backlog(*urgent)], seen, now, last=last, moves=50)
        chosen = {**last.models, **fallback_models({model: now - 100.0}, seen, now)}
        for each in fleet:
            if chosen[each.name] != each.loaded and now >= each.ready_at:
                each.swap(chosen[each.name], now, 0.0)
            assert 2 * each.swapped_s <= each.ready_at - NOW + SWAPS_SAVED_S + (each.last_swap_s or 0.0) + 1e-6
