"""The fair share as a floor in the paged engine: a request of the least urgent tier still ends."""

from __future__ import annotations

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.interface import Observer
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival
from tests.simulation.test_preemptive import WHOLE, made, play


def test_background_ends_under_an_endless_premium_flood_within_its_bound() -> None:
    """From its arrival to its end all tenants together receive at most (its own + 2 slack + U) / share. U is what a
    full batch may receive: at most three service units for each token of the pool."""
    slack, own = 400.0, 60 + 2 * 30
    flood = [Arrival(n * 0.05, f"p{n % 3}", 60, 60, tier="premium") for n in range(1500)]
    late = Arrival(5.0, "b", 60, 30, tier="background")
    engine = made(WHOLE, TierSettings(share_slack=slack))
    admitted = Last(engine)
    engine._observer = admitted
    ends = play(sorted([*flood, late], key=lambda arrival: arrival.arrival_s), engine)
    one = next(r for r in ends.ended if r.tier is Tier.BACKGROUND)
    assert one.served
    assert one.finish_s < ends.total_time_s / 4
    assert admitted.given <= (own + 2 * slack + 3 * WHOLE.pool_tokens) / 0.15


class Last(Observer):
    """What all tenants received from the background request's arrival to its end."""

    def __init__(self, engine: PagedEngine) -> None:
        assert isinstance(engine.policy, TieredQueue)
        self._shares = engine.policy.shares
        self._from = 0.0
        self.given = 0.0

    def on_enqueued(self, request: SimRequest, now_s: float) -> None:
        if request.tier is Tier.BACKGROUND:
            self._from = self._shares.total

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        if request.tier is Tier.BACKGROUND:
            self.given = self._shares.total - self._from
