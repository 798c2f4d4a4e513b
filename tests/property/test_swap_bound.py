"""In virtual time: however often plans want other models, swaps take a bounded part of a worker's time (docs/gate.md).

The gate is the production's, with calls for every model, plans that want another model all the time, and workers whose
loads take other times than they expect at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import Attempts, Plan
from dispatcher.model.fleet import WorkerPlan
from dispatcher.policies.planning.fleet import SWAPS_SAVED_S
from gpu_worker.policies.swap_seconds import Slowness, SwapSeconds
from tests.support.world.lone_shard import T0, LoneShard, swap_report

TICK_S = 0.5
RUN_S = 300.0
_ROUNDING = 1e-6


@dataclass
class Swap:
    """`price_s`: what its load was expected to take."""

    ordered_at: float
    drain_s: float
    load_s: float
    price_s: float

    @property
    def took_s(self) -> float:
        return self.drain_s + self.load_s

    @property
    def ends_at(self) -> float:
        return self.ordered_at + self.took_s


@dataclass
class Worker:
    """A worker that obeys at once, and measures its loads. `loads_s`: what each model takes."""

    prices: dict[str, SwapSeconds]
    loads_s: dict[str, float]
    drain_s: float
    model: str = "a"
    loading: str = ""
    swaps: list[Swap] = field(default_factory=list)

    def heartbeat(self, shard: LoneShard, now: float) -> None:
        if self.loading and now >= self.swaps[-1].ends_at:
            self.prices[self.loading].observe(self.loads_s[self.loading])
            self.model, self.loading = self.loading, ""
        expected_s = {model: each.expected_s for model, each in self.prices.items()}
        answer = shard.do(swap_report("w", self.model, expected_s, draining=bool(self.loading)), now)
        assert isinstance(answer, Attempts)
        if answer.load and not self.loading:
            self.loading = answer.load
            self.swaps.append(Swap(now, self.drain_s, self.loads_s[answer.load], expected_s[answer.load]))


def play(
    believed_s: Sequence[float], factor: float, drain_s: float, plans: float, idle: float, seed: int
) -> list[Swap]:
    """Return the swaps of a worker. `plans`: the part of the ticks with a plan. `idle`: the part of the models that no
    call waits for."""
    random, names, slowness = Random(seed), "abcde"[: len(believed_s)], Slowness()
    prices = {name: SwapSeconds(seconds, slowness) for name, seconds in zip(names, believed_s, strict=True)}
    worker = Worker(prices, {name: each.expected_s * factor for name, each in prices.items()}, drain_s)
    shard = LoneShard(None, swap_report("w", "a", {name: each.expected_s for name, each in prices.items()}))
    for name in names:
        if random.random() >= idle:
            for _ in range(3):
                shard.call(model=name)
    for tick in range(int(RUN_S / TICK_S)):
        now = T0 + tick * TICK_S
        if random.random() < plans:
            other = random.choice([name for name in names if name != worker.model])
            shard.do(Plan(now, (WorkerPlan("w", other, ()),), ()), now)
        worker.heartbeat(shard, now)
    return worker.swaps


def runs_of(swaps: Sequence[Swap]) -> list[tuple[Sequence[Swap], float]]:
    """Return all runs of neighbouring swaps, each with the seconds from its first order to its last report."""
    found = []
    for first in range(len(swaps)):
        for last in range(first + 1, len(swaps) + 1):
            run = swaps[first:last]
            found.append((run, run[-1].ends_at - run[0].ordered_at))
    return found


believed = st.lists(st.sampled_from([0.0, 1.0, 5.0, 40.0]), min_size=2, max_size=4)
factors = st.sampled_from([0.1, 1.0, 3.0, 10.0])


@settings(max_examples=20, deadline=None)
@given(believed, factors, st.sampled_from([0.0, 4.0, 30.0]), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 10**6))
@example([1.0, 1.0], 10.0, 4.0, 1.0, 1)
def test_loads_take_half_of_the_time_and_what_was_saved_and_what_their_prices_missed(
    believed_s: list[float], factor: float, drain_s: float, plans: float, seed: int
) -> None:
    for run, seconds in runs_of(play(believed_s, factor, drain_s, plans, 0.3, seed)):
        missed_s = sum(max(0.0, swap.load_s - swap.price_s) for swap in run[1:])
        longest_s = max(swap.load_s for swap in run)
        assert sum(swap.load_s for swap in run) <= (seconds + SWAPS_SAVED_S + longest_s + missed_s) / 2 + _ROUNDING


@settings(max_examples=20, deadline=None)
@given(believed, st.sampled_from([0.1, 10.0]), st.integers(0, 10**6))
def test_a_worker_has_wrong_prices_for_two_loads(believed_s: list[float], factor: float, seed: int) -> None:
    """All its models are slower by one factor, and share it."""
    swaps = play(believed_s, factor, 1.0, 1.0, 0.0, seed)
    wrong = [swap for swap in swaps if abs(swap.load_s - swap.price_s) > _ROUNDING]
    assert len(wrong) <= 2


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(0.0, 1.0), (1.0, 10.0), (5.0, 0.1), (5.0, 2.0)]), st.sampled_from([0.0, 2.0]), st.booleans())
@example((1.0, 10.0), 2.0, False)
def test_swaps_of_plans_with_their_drains_take_half_of_the_time_and_what_was_saved_without_calls(
    swap: tuple[float, float], drain_s: float, is_idle: bool
) -> None:
    """Two models: each plan wants the other one, so no model waits until it is loaded without a plan. Without calls the
    first swaps have no rest."""
    swap_s, factor = swap
    swaps = play([swap_s, swap_s], factor, drain_s, 1.0, float(is_idle), 0)
    assert len(swaps) > 3
    saved_s = SWAPS_SAVED_S if is_idle else 0.0
    for run, seconds in runs_of(swaps):
        assert sum(swap.took_s for swap in run) <= (seconds + saved_s + run[-1].took_s) / 2 + _ROUNDING
    first = swaps[0]
    assert (swaps[1].ordered_at - first.ends_at < max(4.0, first.took_s)) is is_idle


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(1.0, 10.0), (5.0, 0.1), (5.0, 2.0), (20.0, 1.0)]), st.sampled_from([0.0, 12.0, 30.0]))
@example((5.0, 2.0), 30.0)
def test_swaps_without_a_plan_take_half_of_the_time_with_drains(swap: tuple[float, float], drain_s: float) -> None:
    """Calls wait for every model, and the models take turns."""
    swap_s, factor = swap
    swaps = play([swap_s] * 3, factor, drain_s, 0.0, 0.0, 0)
    assert len(swaps) > 1
    for run, seconds in runs_of(swaps):
        assert sum(swap.took_s for swap in run) <= (seconds + run[-1].took_s) / 2 + _ROUNDING
