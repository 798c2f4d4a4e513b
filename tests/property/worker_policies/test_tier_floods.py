"""Background under an endless flood of premium receives its share, within the bound that policies/tiers.py states."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.tiers import TierSettings
from tests.support.queue.block_model import BlockModel, Live, Machine
from tests.support.queue.plan_rules import plan_is_right

PREMIUM, STANDARD, BACKGROUND = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND
STEP_S = 0.05
OUTPUT_TOKENS = 10
shares = pytest.mark.parametrize("share", [0.05, 0.15, 0.4])
slacks = pytest.mark.parametrize("slack", [0.0, 64.0, 1024.0])
machines = pytest.mark.parametrize(
    "machine",
    [Machine(12, 4, 3), Machine(24, 4, 8), Machine(64, 4, 40)],
    ids=["few slots", "few blocks", "blocks alone"],
)


class Flood:
    """`rising`, in its methods: tiers of which more requests always wait than can enter."""

    def __init__(self, machine: Machine, settings: TierSettings) -> None:
        self.model = BlockModel(settings, machine, seen=plan_is_right)
        self.share = settings.share(BACKGROUND)
        self.slack = settings.share_slack
        self.batch = 2 * machine.blocks * machine.block_tokens
        """U: a full batch may still receive an output token, of weight 2, for each token of the pool."""
        self.worst = 0.0
        """The most service that background lacked of its share over any interval in which it waited."""
        self.lives: dict[str, Live] = {}
        self.waited: dict[str, float] = {}
        """For each background request, the service of all tiers while it waited, over all its stays in the queue."""
        self._behind = 0.0

    @property
    def all(self) -> float:
        return sum(self.model.ledger.given.values())

    @property
    def given(self) -> float:
        return self.model.ledger.given.get(BACKGROUND, 0.0)

    def arrive(self, tier: Tier, input_tokens: int = 6, output_tokens: int = OUTPUT_TOKENS) -> str:
        request_id = self.model.arrive(QueueRequest("", tier, input_tokens, tier=tier), output_tokens)
        assert request_id is not None
        if tier is BACKGROUND:
            self.lives[request_id] = self.model.waiting[request_id]
            self.waited[request_id] = 0.0
        return request_id

    def steps(self, count: int, *rising: Tier) -> Iterator[int]:
        for number in range(count):
            for tier in rising:
                while self.model.policy.waiting_in(tier) <= self.model.machine.slots:
                    self.arrive(tier, 3 + number % 7, 4 + number % 9)
            self._step()
            yield number

    def run(self, count: int, *rising: Tier) -> None:
        for _ in self.steps(count, *rising):
            pass

    def _step(self) -> None:
        waited, all_, given = self.model.policy.waiting_in(BACKGROUND) > 0, self.all, self.given
        self.model.pass_()
        self.model.step()
        self.model.check()
        for request_id in self.waited:
            if request_id in self.model.waiting:
                self.waited[request_id] += self.all - all_
        self.model.now_s += STEP_S
        behind = self._behind + self.share * (self.all - all_) - (self.given - given)
        self._behind = max(0.0, behind) if waited else 0.0
        self.worst = max(self.worst, self._behind)


def settings_of(share: float, slack: float) -> TierSettings:
    return TierSettings(shares={PREMIUM: 0.5, BACKGROUND: share}, share_slack=slack)


@shares
@slacks
@machines
def test_background_ends_within_its_bound(share: float, slack: float, machine: Machine) -> None:
    """It waits for at most (B + slack + U) / s_t, because its tier begins to wait with it, and again, with another
    slack, after each eviction. Every other step gives it a token, except a step that evicts it."""
    flood = Flood(machine, settings_of(share, slack))
    flood.run(50, PREMIUM)
    mine = [flood.arrive(BACKGROUND) for _ in range(5)]
    before = {request_id: number * (6 + 2 * OUTPUT_TOKENS) for number, request_id in enumerate(mine)}
    for _ in flood.steps(1_000_000, PREMIUM):
        for request_id in mine:
            stays = max(1, flood.lives[request_id].admissions + (request_id in flood.model.waiting))
            stay = (before[request_id] + slack + flood.batch) / share
            assert flood.waited[request_id] <= stays * stay + (stays - 1) * slack / share
        if all(request_id in flood.model.ended for request_id in mine):
            break
    assert {flood.model.ended[request_id] for request_id in mine} == {"finished"}
    assert all(flood.lives[request_id].evicted <= 3 for request_id in mine)


@shares
@slacks
@machines
def test_background_that_always_waits_receives_its_share_over_any_interval(
    share: float, slack: float, machine: Machine
) -> None:
    flood = Flood(machine, settings_of(share, slack))
    flood.run(1_000, PREMIUM, BACKGROUND)
    assert flood.worst <= slack + flood.batch, "it would be 2 slack after a lead"
    assert flood.given >= share * flood.all - slack - flood.batch
    assert flood.model.ledger.given[PREMIUM] >= 0.5 * flood.all - slack - flood.batch


@slacks
def test_service_received_alone_is_not_held_against_background_later(slack: float) -> None:
    """It had the whole engine while no other tier wanted it, far beyond its share."""
    flood = Flood(Machine(24, 4, 8), settings_of(0.15, slack))
    flood.run(1_000, BACKGROUND)
    assert flood.given == flood.all
    flood.run(1_000, PREMIUM, BACKGROUND)
    assert flood.worst <= 2 * slack + flood.batch


@machines
def test_without_a_share_background_starves(machine: Machine) -> None:
    """The test of the tests above: with the source's aging but without a share."""
    for share in (0.15, 0.0):
        flood = Flood(machine, settings_of(share, 64.0))
        flood.run(50, PREMIUM)
        mine = flood.arrive(BACKGROUND)
        most = 5 * (64.0 + flood.batch) / 0.15
        for _ in flood.steps(1_000_000, PREMIUM):
            if mine in flood.model.ended or flood.waited[mine] > most:
                break
        assert flood.model.ended.get(mine) == ("finished" if share else None)


@machines
def test_all_three_tiers_get_their_shares(machine: Machine) -> None:
    """Each tier always waits, so each receives at least its share."""
    settings = TierSettings(share_slack=64.0)
    flood = Flood(machine, settings)
    flood.run(1_000, PREMIUM, STANDARD, BACKGROUND)
    for tier in (PREMIUM, STANDARD, BACKGROUND):
        assert flood.model.ledger.given[tier] >= settings.share(tier) * flood.all - flood.slack - flood.batch
