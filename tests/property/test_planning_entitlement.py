"""Entitlement: all capacity is used, guarantees first, max-min by weight, and no gain by claims or floods."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.entitlement import GroupDemand, TenantDemand, entitle

HORIZON_S = 60.0
CLOSE = 1e-6
"""Relative to the capacity."""

dues = st.floats(-100.0, 4_000.0)
groups = st.builds(
    lambda requests, each, due_s, is_deferred: ("", requests, requests * each, due_s, is_deferred, 50.0),
    st.integers(1, 200),
    st.floats(0.1, 500.0),
    dues,
    st.booleans(),
)
shares = st.builds(Share, st.sampled_from([0.5, 1.0, 1.0, 2.0, 10.0]), st.sampled_from([0.0, 0.0, 1.0, 7.5, 40.0]))


@st.composite
def fleets(draw: st.DrawFn) -> list[TenantDemand]:
    demands = []
    for number in range(draw(st.integers(1, 7))):
        drawn = draw(st.lists(groups, max_size=4))
        named = [GroupDemand(f"g{at}", *rest) for at, (_, *rest) in enumerate(drawn)]
        demands.append(TenantDemand(f"t{number}", draw(shares), named, draw(st.sampled_from([0.0, 0.0, 90.0, 5e3]))))
    return demands


capacities = st.sampled_from([0.0, 0.5, 10.0, 100.0, 1_000.0, 30_000.0])


def services(demands: list[TenantDemand], capacity: float) -> list[float]:
    return [each.service for each in entitle(demands, capacity, HORIZON_S).values()]


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities)
def test_the_capacity_is_used_and_not_exceeded(demands: list[TenantDemand], capacity: float) -> None:
    wanted = [demand.service for demand in demands]
    found, amount = services(demands, capacity), capacity * HORIZON_S
    assert abs(sum(found) - min(amount, sum(wanted))) <= CLOSE * amount
    assert all(0 <= service <= want for service, want in zip(found, wanted, strict=True))


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities)
def test_guarantees_come_first(demands: list[TenantDemand], capacity: float) -> None:
    amount = capacity * HORIZON_S
    booked = [min(demand.service, demand.share.rate_per_s * HORIZON_S) for demand in demands]
    found = list(entitle(demands, capacity, HORIZON_S).values())
    if sum(booked) <= amount:
        assert [each.guaranteed for each in found] == booked
    else:
        assert abs(sum(each.guaranteed for each in found) - amount) <= CLOSE * amount
    assert all(each.service >= each.guaranteed for each in found)


def level(demand: TenantDemand, service: float) -> float:
    return service / demand.share.weight


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities)
def test_no_tenant_gains_without_loss_at_a_lower_level(demands: list[TenantDemand], capacity: float) -> None:
    found, margin = list(entitle(demands, capacity, HORIZON_S).values()), CLOSE * capacity * HORIZON_S
    unmet = [
        level(demand, each.service)
        for demand, each in zip(demands, found, strict=True)
        if each.service < demand.service - margin
    ]
    for demand, each in zip(demands, found, strict=True):
        above_guarantee = each.service > each.guaranteed + margin
        assert not above_guarantee or all(level(demand, each.service - margin) <= other + margin for other in unmet)


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities, factor=st.floats(1.0, 50.0), added=st.floats(0.0, 20.0))
def test_a_higher_guarantee_is_never_less(
    demands: list[TenantDemand], capacity: float, factor: float, added: float
) -> None:
    before, share = services(demands, capacity)[0], demands[0].share
    more = replace(demands[0], share=replace(share, rate_per_s=factor * share.rate_per_s + added))
    assert services([more, *demands[1:]], capacity)[0] >= before - CLOSE * capacity * HORIZON_S


def without_deferral(demand: TenantDemand) -> TenantDemand:
    return replace(demand, groups=[replace(group, is_deferred=False) for group in demand.groups])


def split_in_two(group: GroupDemand) -> list[GroupDemand]:
    parts = (group.requests // 2, group.requests - group.requests // 2)
    return [
        replace(group, name=f"{group.name}-{at}", requests=part, service=group.service * part / group.requests)
        for at, part in enumerate(parts)
        if part
    ]


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities, claimed=dues)
def test_stricter_claims_and_more_groups_gain_nothing(
    demands: list[TenantDemand], capacity: float, claimed: float
) -> None:
    """A deferred class gives up its tenant's share; among the others, a claim has no effect on what tenants get."""
    honest = [without_deferral(demand) for demand in demands]
    strict = [replace(group, due_s=min(group.due_s, claimed)) for group in honest[0].groups]
    pieces = [piece for group in strict for piece in split_in_two(group)]
    margin = CLOSE * capacity * HORIZON_S
    before, after = services(honest, capacity), services([replace(honest[0], groups=pieces), *honest[1:]], capacity)
    assert all(abs(one - other) <= margin for one, other in zip(before, after, strict=True))


@settings(max_examples=200, deadline=None)
@given(demands=fleets(), capacity=capacities)
def test_deferred_work_with_slack_takes_nothing(demands: list[TenantDemand], capacity: float) -> None:
    direct = [
        replace(each, groups=[group for group in each.groups if not group.is_deferred or group.due_s < group.needed_s])
        for each in demands
    ]
    assert services(demands, capacity) == services(direct, capacity)


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities, groups_more=st.integers(1, 5))
def test_a_flood_displaces_nothing_within_a_share(
    demands: list[TenantDemand], capacity: float, groups_more: int
) -> None:
    """Let tenant 0 flood. A tenant that wants no more than it gets when all others flood keeps every request."""
    flood = [GroupDemand(f"flood-{at}", 1_000, 1e7, -50.0) for at in range(groups_more)]
    flooded = [replace(demand, groups=[*demand.groups, *flood]) for demand in demands]
    after = entitle([flooded[0], *demands[1:]], capacity, HORIZON_S)
    before = entitle(demands, capacity, HORIZON_S)
    for at, demand in enumerate(demands[1:], 1):
        all_flood = entitle([*flooded[:at], demand, *flooded[at + 1 :]], capacity, HORIZON_S)[demand.tenant]
        if all_flood.service >= demand.service:
            assert after[demand.tenant].service == demand.service
            assert after[demand.tenant].requests == before[demand.tenant].requests
            claimed = {group.name: group.requests for group in demand.groups if group.is_claimed}
            assert claimed.items() <= after[demand.tenant].requests.items()


@settings(max_examples=300, deadline=None)
@given(demands=fleets(), capacity=capacities)
def test_requests_are_entitled_in_the_order_of_their_due_times(demands: list[TenantDemand], capacity: float) -> None:
    """The service of a tenant's entitled requests is at most its own and a part of one request that is guaranteed."""
    for demand, found in zip(demands, entitle(demands, capacity, HORIZON_S).values(), strict=True):
        groups = {group.name: group for group in demand.groups}
        assert list(found.requests) == [each.name for each in sorted(demand.groups, key=lambda group: group.due_s)]
        claimed = [groups[name] for name in found.requests if groups[name].is_claimed]
        counts = [found.requests[group.name] for group in claimed]
        first_cut = next((at for at, group in enumerate(claimed) if counts[at] < group.requests), len(counts))
        each = [group.service / group.requests for group in claimed]
        spent = sum(one * number for one, number in zip(each, counts, strict=True))
        assert spent <= found.service + CLOSE * found.service + (max(each, default=0.0) if found.guaranteed else 1e-3)
        assert not any(counts[first_cut + 1 :])
