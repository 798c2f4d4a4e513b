"""The bounds of shares follow from the arithmetic: no charge of a year is lost or infinite, and 2:1 stays 2:1."""

from __future__ import annotations

from math import inf, isfinite, nan, ulp
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, End, Offer
from dispatcher.policies.clocks import Share, rate_scale
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.policies.orders.two_clocks import TwoClocks
from dispatcher.policies.share_bounds import (
    BURST_MAX,
    COST_MAX,
    RATE_MAX,
    RATE_MIN,
    SCALE_MIN,
    SHARE_BOUNDS,
    WEIGHT_MAX,
    WEIGHT_MIN,
    clamp_burst,
    clamp_cost,
    clamp_rate,
    clamp_weight,
    is_share_sound,
    share_problem,
)
from dispatcher.shard.alone import LoneGate, report, with_fields
from dispatcher.shard.codec import encode_entry

COST_LEAST = 10.0
V_MAX = 366 * 86_400.0 * 100_000.0 / WEIGHT_MIN
LAST_UNIX_S = 2.0**32
ODD = [nan, inf, -inf, 0.0, -0.0, -1.0, 5e-324, 1e-306, 1e-12, 1e306, 10**400, True, False, "2", None, [1], 1 + 0j]


weights = st.floats(WEIGHT_MIN, WEIGHT_MAX)
rates = st.floats(RATE_MIN, RATE_MAX)
bursts = st.floats(0.0, BURST_MAX)


def charged(share: Share, cost: float, now: float, virtual_time: float, scale: float) -> tuple[Tenant, Call]:
    """Return a tenant that was charged for a dispatch with a full bucket, and the call."""
    order = TwoClocks()
    tenant = Tenant("a", (now - share.burst / share.rate_per_s, virtual_time))
    tenant.config = TenantConfig(1, share.weight, share.rate_per_s, share.burst, "standard", 1)
    call = Call("p-1", tenant, CallTerms("a", "m", cost, inf, False, "", ""), 1, 0.0)
    found = order.charge(tenant, cost, now, virtual_time, scale, inf)
    call.charge_in_profile, call.charge_rate_per_s, tenant.clocks, _ = found
    call.charge_weight = share.weight
    return tenant, call


@settings(max_examples=300, deadline=None)
@given(
    share=st.builds(Share, weights, rates, bursts),
    cost=st.floats(COST_LEAST, COST_MAX),
    now=st.floats(1.6e9, LAST_UNIX_S),
    year=st.floats(0.0, 1.0),
    scale=st.floats(SCALE_MIN, 1.0),
)
@example(Share(WEIGHT_MAX, RATE_MAX, 0.0), COST_LEAST, LAST_UNIX_S, 1.0, 1.0)
@example(Share(WEIGHT_MIN, RATE_MIN, BURST_MAX), COST_MAX, LAST_UNIX_S, 1.0, SCALE_MIN)
@example(Share(WEIGHT_MAX, RATE_MIN, BURST_MAX), COST_LEAST, LAST_UNIX_S, 1.0, 1.0)
def test_within_a_year_every_charge_moves_both_clocks_and_stays_finite(
    share: Share, cost: float, now: float, year: float, scale: float
) -> None:
    before = year * V_MAX
    tenant, call = charged(share, cost, now, before, scale)
    tat, vft = tenant.clocks
    assert call.charge_in_profile
    assert tat > now - share.burst / share.rate_per_s
    assert vft > before
    assert isfinite(tat)
    assert isfinite(vft)
    assert all(map(isfinite, TwoClocks().settle(tenant, call, 0.0)))


def test_the_bounds_are_not_wider_than_the_arithmetic_allows() -> None:
    assert COST_LEAST / WEIGHT_MAX > ulp(V_MAX) > COST_LEAST / WEIGHT_MAX / 10
    assert COST_LEAST / RATE_MAX > ulp(LAST_UNIX_S - 1) > COST_LEAST / RATE_MAX / 10
    assert ulp(V_MAX) / 2 < 100.0 / WEIGHT_MAX * 0.035, "a request of 100 units is charged to 3 %"


class Pool:
    """A gate with slots, whose entries are encoded as in production."""

    def __init__(self, slots: int) -> None:
        self.gate = LoneGate(None, report(slots=slots), now=1.7e9)
        self.shard = self.gate.shard

    def decide(self, *commands: Accept | End) -> list[Offer]:
        decided = self.gate.decide(*commands, now=self.gate.now + 0.01)
        assert decided.entry is not None
        encode_entry(decided.entry, checked=True)
        return [each for each in decided.outcomes if isinstance(each, Offer)]

    def call(self, tenant: str, weight: float, cost: float) -> Accept:
        return self.gate.new_call(tenant, cost, deadline_at=self.gate.now + 1e6, version=1, weight=weight, floor=0)

    def shares(self, heavy: float, light: float, rounds: int = 300) -> float:
        """Return heavy's service over light's, while both wait all the time."""
        cost = 100.0
        for _ in range(rounds):
            self.decide(self.call("heavy", heavy, cost), self.call("light", light, cost))
        served = {"heavy": 0, "light": 0}
        for _ in range(rounds):
            (running,) = self.shard.state.workers["w"].running.values()
            served[running.tenant.name] += 1
            self.decide(End(running.id, running.attempt, "done", 50, 25))
        return served["heavy"] / served["light"]


@pytest.mark.parametrize(
    ("poison", "requests", "heavy"),
    [(WEIGHT_MIN, 10_000, 2.0), (WEIGHT_MIN, 500, WEIGHT_MAX), (1e-12, 500, 2.0), (1e-306, 500, 2 * WEIGHT_MIN)],
)
def test_two_to_one_stays_two_to_one_after_requests_of_the_least_weight(
    poison: float, requests: int, heavy: float
) -> None:
    pool, random = Pool(1), Random(1)
    for _ in range(requests):
        output = random.randint(1, 2_000)
        (offer,) = pool.decide(pool.call("poison", poison, 100.0 + 2 * output))
        pool.decide(End(offer.id, offer.attempt, "done", 100, output))
    assert pool.shares(heavy, heavy / 2) == pytest.approx(2.0, rel=0.05)


def test_two_to_one_stays_two_to_one_at_the_end_of_the_year() -> None:
    pool = Pool(1)
    pool.shard.state.virtual_time = V_MAX
    assert pool.shares(WEIGHT_MAX, WEIGHT_MAX / 2) == pytest.approx(2.0, rel=0.08)


def test_a_share_in_the_log_that_is_older_than_the_bounds_is_replaced() -> None:
    pool = Pool(1)
    pool.decide(pool.call("evil", 1.0, 100.0))
    evil = pool.shard.state.tenants["evil"]
    evil.config = evil.config._replace(weight=1e-20)
    pool.decide(pool.call("evil", 1.0, 100.0))
    assert evil.config.weight == WEIGHT_MIN


def test_a_call_that_was_charged_with_an_older_share_ends() -> None:
    pool = Pool(1)
    (offer,) = pool.decide(with_fields(pool.call("evil", 1.0, 100.0), rate_per_s=1.0, burst=200.0))
    call = pool.shard.state.calls[offer.id]
    call.charge_weight, call.charge_rate_per_s = 1e-306, 1e-308
    pool.decide(End(offer.id, 1, "done", 10**30, -5))
    assert offer.id not in pool.shard.state.calls
    assert pool.shard.usage_rows()[0].output_tokens == 0


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("setting", SHARE_BOUNDS)
def test_no_odd_value_is_a_setting(setting: str, value: object) -> None:
    problem = share_problem(setting, value)
    allowed = value == 0 and type(value) is float and setting != "weight"
    allowed |= setting == "burst" and value in (5e-324, 1e-306, 1e-12) and type(value) is float
    assert (problem is None) is allowed
    if problem is not None:
        assert problem.startswith("should be ")
        assert len(problem) < 160


@settings(max_examples=200, deadline=None)
@given(st.floats(), st.floats(), st.floats())
@example(nan, nan, nan)
@example(5e-324, 5e-324, 5e-324)
@example(inf, -inf, inf)
def test_what_is_clamped_is_sound(weight: float, rate_per_s: float, burst: float) -> None:
    clamped = clamp_weight(weight), clamp_rate(rate_per_s), clamp_burst(burst)
    assert is_share_sound(*clamped)
    if is_share_sound(weight, rate_per_s, burst):
        assert clamped == (weight, rate_per_s, burst)
    assert 0 <= clamp_cost(weight) <= COST_MAX


@pytest.mark.parametrize("capacity", [nan, -1.0, 0.0, None, 5e-324, 1e-300, inf])
def test_the_scale_of_guarantees_stays_above_its_least(capacity: float | None) -> None:
    assert SCALE_MIN <= rate_scale(1e9, capacity) <= 1.0
