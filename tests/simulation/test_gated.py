"""The gate before the simulated engine: every request ends once, slots bound what runs, the order matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.registry import ORDERS
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import Tier
from dispatcher.shard import accept
from dispatcher.shard.settings import TierFloors
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Observer
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.gates.spec import GateSpec, GateTenant, read_gate
from headgate.simulator.gates.stages import GatedEngine
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

FLOOD = [Arrival(n * 0.05, "flood", 100, 60) for n in range(400)]
QUIET = [Arrival(n * 1.0, "quiet", 50, 20) for n in range(20)]
BOTH = ListWorkload("both", sorted([*FLOOD, *QUIET], key=lambda arrival: arrival.arrival_s))
RUN = RunSpec(BOTH, "fcfs", load_profile())


def gated(order: str = "bwfq", slots: int = 8, **changes: object) -> Run:
    spec = GateSpec(slots, order, {"quiet": GateTenant(Share(1.0, 200.0, 2000.0))}, **changes)  # type: ignore[arg-type]
    return simulate(replace(RUN, gate=spec))


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_every_request_is_served_or_refused(order: str) -> None:
    run = gated(order, deadline_s=30.0)
    assert run.requests == 420
    assert run.served + run.rejected == 420
    assert run.rejections.keys() <= {"timeout", "full"}, "no deadline is surely out of reach"


@pytest.mark.parametrize("order", ["bwfq", "fcfs"])
def test_refusing_late_deadlines_at_once_serves_as_many(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a minute the flood brings twice what is served. What cannot be served in time may be refused at once."""
    flood = [Arrival(n * 0.1, "flood", 100, 60) for n in range(600)]
    long = ListWorkload("long", sorted([*flood, *QUIET], key=lambda arrival: arrival.arrival_s))
    run = simulate(replace(RUN, workload=long, gate=GateSpec(8, order, deadline_s=30.0)))
    monkeypatch.setattr(accept, "_out_of_reach", lambda *_: None)
    late = simulate(replace(RUN, workload=long, gate=GateSpec(8, order, deadline_s=30.0)))
    assert run.rejections["deadline_out_of_reach"] >= 50
    assert run.rejections["timeout"] < late.rejections["timeout"] / 1.2
    assert run.served >= late.served - 2


def test_the_same_run_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gated() == gated()


def test_the_order_is_what_keeps_the_quiet_tenant_out_of_the_flood() -> None:
    quiet = {order: gated(order).tenants["quiet"].ttft_s for order in ("fcfs", "bwfq")}
    assert quiet["fcfs"] is not None
    assert quiet["bwfq"] is not None
    assert quiet["bwfq"].p99 < quiet["fcfs"].p99 / 3


def test_a_queue_is_bounded() -> None:
    spec = GateSpec(1, "bwfq", {"flood": GateTenant(queue_max=10)})
    assert simulate(replace(RUN, gate=spec)).rejections["full"] > 100


def test_tiers_at_the_gate_put_premium_first_and_keep_the_floor_of_the_others() -> None:
    """The flood is premium: without tiers the quiet tenant has half of the slots, with tiers its floor."""
    tenants = {"flood": GateTenant(tier=Tier.PREMIUM), "quiet": GateTenant(tier=Tier.BACKGROUND)}
    waits = []
    for tiers in (None, TierFloors({"background": 0.1}, 200.0), TierFloors({}, 200.0)):
        spec = GateSpec(8, "bwfq", tenants, deadline_s=3600.0, tiers=tiers)
        quiet = simulate(replace(RUN, gate=spec)).tenants["quiet"]
        assert quiet.ttft_s is not None
        assert quiet.served == len(QUIET)
        waits.append(quiet.ttft_s.p99)
    assert waits[0] < waits[1] / 2
    assert waits[1] < waits[2] / 2


def test_throttling_at_the_gate_refuses_only_while_the_cache_is_full() -> None:
    limits = ThrottleLimits(user=30, app=1_000_000, window_s=10.0)
    run = gated(slots=200, throttling=limits)
    assert run.rejections.keys() <= {"throttled_user", "timeout"}
    assert run.rejections.get("throttled_user", 0) > 0
    assert run.tenants["quiet"].rejected == 0
    small = gated(slots=1, throttling=limits, deadline_s=3600.0)
    assert small.rejected == 0


class Most(Observer):
    def __init__(self) -> None:
        self.here = self.most = 0

    def on_enqueued(self, request: SimRequest, now_s: float) -> None:
        self.here += 1
        self.most = max(self.most, self.here)

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        self.here -= 1


@given(st.integers(1, 12), st.sampled_from(["bwfq", "fcfs", "sfq"]))
@settings(max_examples=12, deadline=None)
def test_no_more_than_the_slots_are_in_the_engine(slots: int, order: str) -> None:
    most = Most()
    engine = SeparatePrefillEngine(load_profile(), make_policy("vtc"), observer=most)
    gate = GatedEngine(engine, GateSpec(slots, order), WEIGHTED_TOKENS, lambda now_s: 0.0, lambda: 0.0)
    drive(list(BOTH)[:120], gate, Collector(WEIGHTED_TOKENS, 0.0))
    assert most.most == slots
    assert most.here == 0


def test_with_slots_for_all_requests_the_gate_changes_nothing() -> None:
    alone = simulate(RUN)
    spec = GateSpec(1000, "bwfq", deadline_s=3600.0)
    behind = simulate(replace(RUN, gate=spec))
    assert behind.total_time_s == pytest.approx(alone.total_time_s, rel=0.01)
    for name, figures in alone.tenants.items():
        assert figures.latency_s is not None
        latency_s = behind.tenants[name].latency_s
        assert latency_s is not None
        assert latency_s.p50 == pytest.approx(figures.latency_s.p50, rel=0.05)


def test_the_gates_file(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text("slots: 4\ntenants:\n  a: {weight: 2, rate_per_s: 10, burst: 100, tier: premium}\n  b:\n")
    spec = read_gate(path, order="bwfq")
    assert spec.slots == 4
    assert spec.tenants["a"].share == Share(2.0, 10.0, 100.0)
    assert spec.tenants["b"] == GateTenant()
    path.write_text("slots: 4\na: {weight: 2}\n")
    assert read_gate(path, order="bwfq").tenants["a"].share.weight == 2.0
    path.write_text(
        "slots: 4\ntiers: {shares: {premium: 0.5, background: 0.25}, slack: 100}\n"
        "throttling: {user: 6, app: 60, apps: {chat: 90}, window_s: 30}\na: {weight: 2}\n"
    )
    spec = read_gate(path, order="bwfq")
    assert spec.tiers == TierFloors({"premium": 0.5, "background": 0.25}, 100.0)
    assert spec.throttling == ThrottleLimits(6, 60, {"chat": 90}, 30.0)
    assert spec.tenants.keys() == {"a"}


def test_the_servers_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text("slots: 4\ntenants:\n  a: {queue_max: 7, max_tokens: 9, models: [m]}\ntiers: {}\n")
    spec = read_gate(path, order="bwfq")
    assert spec.tenants == {"a": GateTenant(queue_max=7)}
    assert spec.tiers == TierFloors({"premium": 0.5, "standard": 0.35, "background": 0.15})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants: {a: {weight: 1}}", "key 'slots': is missing"),
        ("a: {weight: 1}", "key 'slots': is missing"),
        ("slots: none\ntenants: {}", "slots"),
        ("slots: 4\ntenants: {a: {weight: -1}}", "weight"),
        ("slots: 4\ntenants: {a: {wait: 1}}", "wait"),
        ("slots: 4\ntenants: {a: {tier: royal}}", "tier"),
        ("slots: 4\ntenants: [a]", "tenants"),
        (
            "slots: 4\ntiers: {shares: {premium: 0.7, standard: 0.7}}\ntenants: {}",
            "key 'tiers': the shares of premium, .* add up",
        ),
        (
            "slots: 4\ntiers: {share: {}}\ntenants: {}",
            "key 'tiers.share': is not known here .*'shares'.*; there are shares, slack",
        ),
        ("slots: 4\ntiers: {shares: {royal: 0.7}}\ntenants: {}", "premium"),
        (
            "slots: 4\nthrottling: {user: 0, app: 5}\ntenants: {}",
            "key 'throttling.user': should be greater than or equal to 1, not '0'",
        ),
        ("[", "line"),
    ],
)
def test_a_mistake_in_the_gates_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as refused:
        read_gate(path, order="bwfq")
    assert "gate.yaml" in str(refused.value)


@pytest.mark.parametrize("shards", [1, 3])
def test_years_without_a_request_take_no_time(shards: int) -> None:
    """Each second of them had a report of the worker."""
    arrivals = ListWorkload("far", [Arrival(at_s, "quiet", 50, 20) for at_s in (0.0, 9e7, 9e7 + 1)])
    run = simulate(
        replace(
            RUN,
            workload=arrivals,
            gate=GateSpec(8, tenants={"quiet": GateTenant(Share(1.0, 200.0, 2000.0))}, shards=shards),
        )
    )
    assert run.served == 3
