"""No livelock: random schedules, each run until no request is left, with every rule checked on the way."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest

from dispatcher.policies.tiers import SHARES, Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.tiers import TierSettings
from tests.support.duration import at_depth
from tests.support.queue.block_model import BlockModel, Machine
from tests.support.queue.plan_rules import plan_is_right

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
