"""Tiers, preemption and admission on an engine with few blocks: random orders of events under Hypothesis, and random
schedules that are each run until no request is left."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.policies.tiers import SHARES, Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.preemption import UNCALIBRATED, Calibration
from gpu_worker.policies.tiers import TierSettings
from tests.support.duration import at_depth
from tests.support.queue.block_model import CALIBRATION, BlockModel, Machine
from tests.support.queue.plan_rules import plan_is_right

numbers = st.integers(0, 1_000)

arrivals = st.tuples(
    st.integers(0, 3), st.integers(1, 16), st.integers(1, 16), st.sampled_from([float("inf"), float("inf"), 5.0])
)
"""Tenant, prompt, output, patience in seconds."""

tier_settings = st.builds(
    TierSettings,
    shares=st.sampled_from(
        [{Tier.PREMIUM: 0.5, Tier.STANDARD: 0.35, Tier.BACKGROUND: 0.15}, {Tier.BACKGROUND: 0.4}, {}]
    ),
    share_slack=st.sampled_from([0.0, 16.0, 4096.0]),
    preemptions_max=st.sampled_from([3, 2, 1, 0]),
    at_limit=st.sampled_from(["promote", "end"]),
    may_drop=st.sets(st.sampled_from([Tier.STANDARD, Tier.BACKGROUND])).map(frozenset),
    lead_max=st.sampled_from([float("inf"), 8.0]),
    premium_reserve=st.sampled_from([0.0, 0.0, 0.3]),
)

machines = st.builds(
    Machine,
    blocks=st.integers(6, 16),
    block_tokens=st.integers(1, 4),
    slots=st.integers(2, 5),
    swap_bytes=st.sampled_from([20.0, 1e6, 0.0]),
)


class TierMachine(RuleBasedStateMachine):
    @initialize(settings=tier_settings, machine=machines, calibration=st.sampled_from([CALIBRATION, UNCALIBRATED]))
    def start(self, settings: TierSettings, machine: Machine, calibration: Calibration) -> None:
        self.model = BlockModel(settings, machine, calibration, seen=plan_is_right)
        self.protected_at: dict[str, int] = {}

    @rule(tier=st.sampled_from(Tier), what=st.lists(arrivals, min_size=1, max_size=4))
    def some_arrive(self, tier: Tier, what: list[tuple[int, int, int, float]]) -> None:
        for tenant, input_tokens, output_tokens, patience_s in what:
            deadline_s = self.model.now_s + patience_s
            request = QueueRequest("", f"t{tenant}", input_tokens, 2.0**tenant, tier=tier, deadline_s=deadline_s)
            self.model.arrive(request, output_tokens)

    @rule(tenths=st.integers(0, 80))
    def time_passes(self, tenths: int) -> None:
        self.model.now_s += tenths / 10

    @rule()
    def admits(self) -> None:
        self.model.pass_()

    @rule(steps=st.integers(1, 4), at_once=st.booleans(), every=st.integers(1, 3))
    def works(self, steps: int, at_once: bool, every: int) -> None:
        """Run steps, with a pass of admissions every `every` steps."""
        for number in range(steps):
            if number % every == 0:
                self.model.pass_()
            self.model.step(at_once=at_once)

    @precondition(lambda self: self.model.waiting or self.model.running)
    @rule(number=numbers)
    def a_request_leaves(self, number: int) -> None:
        here = [*self.model.waiting, *self.model.running]
        self.model.remove(here[number % len(here)])

    @precondition(lambda self: any(live.entered for live in self.model.running.values()))
    @rule(number=numbers)
    def an_admission_is_undone(self, number: int) -> None:
        fresh = [request_id for request_id, live in self.model.running.items() if live.entered]
        self.model.undo_admit(fresh[number % len(fresh)])

    @invariant()
    def holds(self) -> None:
        self.model.check()

    @invariant()
    def a_promoted_request_is_not_evicted_again(self) -> None:
        if self.model.settings.at_limit == "end":
            return
        for request_id, live in (*self.model.waiting.items(), *self.model.running.items()):
            if live.evicted + live.native >= self.model.settings.preemptions_max:
                assert self.protected_at.setdefault(request_id, live.evicted) == live.evicted

    @invariant()
    def only_at_limit_end_drops_exhausted_requests(self) -> None:
        assert self.model.settings.at_limit == "end" or "exhausted" not in self.model.ended.values()

    def teardown(self) -> None:
        """Every request ends, because each step generates at least one token."""
        if not hasattr(self, "model"):
            return
        lives = [*self.model.waiting.values(), *self.model.running.values()]
        for _ in range(sum(live.output_tokens - live.generated for live in lives)):
            self.model.pass_()
            self.model.step()
            self.model.check()
        assert not self.model.waiting
        assert not self.model.running


TestTierMachine = TierMachine.TestCase

TestTierMachine.settings = settings(max_examples=at_depth(100, 400), stateful_step_count=40, deadline=None)

SCHEDULES, PARTS = at_depth(1_250, 10_000), at_depth(1, 4)

STEP_S = 0.5
"""On the model's clock. Waiting for a few steps is worth a rank."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_request_ends_in_each_schedule(part: int) -> None:
    """Each step with a request generates at least one token, and none is lost. So after
    the last arrival there are at most as many steps as tokens, plus one for each undone admission."""
    seen: Counter[str] = Counter()
    for seed in range(part, SCHEDULES, PARTS):
        seen.update(live_through(Random(seed)))
    assert seen["schedules"] == SCHEDULES // PARTS
    ends = ("finished", "expired", "dropped", "exhausted", "aborted")
    assert min(seen[end] for end in ends) > at_depth(5, 10), "every kind of end occurs"
    assert min(seen["evicted"], seen["native"]) > at_depth(500, 1_000), "blocks were scarce"


def live_through(random: Random) -> Counter[str]:
    model = BlockModel(some_settings(random), some_machine(random), seen=plan_is_right)
    arrivals = sorted(random.randrange(24) for _ in range(random.randint(4, 16)))
    steps, wasted, work = 0, 0, 0
    while arrivals or model.waiting or model.running:
        while arrivals and arrivals[0] <= steps:
            arrivals.pop(0)
            work += some_arrival(random, model)
        entered = model.pass_()
        if entered and random.random() < 0.05:
            model.undo_admit(entered[-1])
            wasted += 1
        model.check()
        model.step(at_once=random.random() < 0.7)
        model.check()
        if model.running and random.random() < 0.02:
            model.remove(random.choice(sorted(model.running)))
        model.now_s += STEP_S
        steps += 1
        assert steps <= 24 + work + wasted, "at every step some request makes progress"
    seen = Counter(model.ended.values())
    seen.update(schedules=1, evicted=model.evictions, native=model.native)
    return seen


def some_arrival(random: Random, model: BlockModel) -> int:
    """Return its output tokens, which are the steps that it may take."""
    tier = random.choice([Tier.PREMIUM, Tier.PREMIUM, Tier.STANDARD, Tier.STANDARD, Tier.BACKGROUND, Tier.SYSTEM])
    deadline_s = model.now_s + random.choice([2.0, 8.0]) if random.random() < 0.15 else inf
    tenant = random.randrange(3)
    request = QueueRequest("", f"t{tenant}", random.randint(1, 20), 2.0**tenant, tier=tier, deadline_s=deadline_s)
    output_tokens = random.randint(1, 16)
    return output_tokens if model.arrive(request, output_tokens) is not None else 0


def some_settings(random: Random) -> TierSettings:
    return TierSettings(
        shares=random.choice([SHARES, SHARES, {}, {Tier.BACKGROUND: 1.0}]),
        share_slack=random.choice([0.0, 16.0, 64.0, 4096.0]),
        aging_per_s=random.choice([0.0, 0.1, 2.0]),
        preemption=random.random() < 0.9,
        preemptions_max=random.randrange(4),
        at_limit=random.choice(["promote", "end"]),
        may_drop=frozenset(random.sample([Tier.STANDARD, Tier.BACKGROUND], random.randrange(3))),
        lead_max=random.choice([inf, inf, 4.0, 32.0]),
        premium_reserve=random.choice([0.0, 0.0, 0.3, 0.5]),
    )


def some_machine(random: Random) -> Machine:
    return Machine(
        random.randint(6, 20), random.randint(1, 4), random.randint(1, 5), random.choice([0.0, 16.0, 40.0, 1e6])
    )
