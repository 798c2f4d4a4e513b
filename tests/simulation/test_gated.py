"""The gate before the simulated engine: every request ends once, slots bound what runs, the order matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.registry import ORDERS
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Observer
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.gates.file import read_gate
from headgate.simulator.gates.gated_engine import GatedEngine
from headgate.simulator.gates.spec import GateSpec, GateTenant
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
    assert run.rejections.keys() <= {"timeout", "full"}


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


class Most(Observer):
    def __init__(self) -> None:
        self.here = self.most = 0

    def enqueued(self, request: SimRequest, now_s: float) -> None:
        self.here += 1
        self.most = max(self.most, self.here)

    def finished(self, request: SimRequest, now_s: float) -> None:
        self.here -= 1


@given(st.integers(1, 12), st.sampled_from(["bwfq", "fcfs", "sfq"]), st.booleans())
@settings(max_examples=12, deadline=None)
def test_no_more_than_the_slots_are_in_the_engine(slots: int, order: str, pure: bool) -> None:
    most = Most()
    engine = SeparatePrefillEngine(load_profile(), make_policy("vtc"), observer=most)
    gate = GatedEngine(engine, GateSpec(slots, order, pure=pure), WEIGHTED_TOKENS, lambda now_s: 0.0)
    drive(list(BOTH)[:120], gate, Collector(WEIGHTED_TOKENS, 0.0))
    gate.close()
    assert most.most == slots
    assert most.here == 0


@pytest.mark.parametrize("pure", [True, False])
def test_with_slots_for_all_requests_the_gate_changes_nothing(pure: bool) -> None:
    alone = simulate(RUN)
    spec = GateSpec(1000, "bwfq", deadline_s=3600.0, pure=pure)
    behind = simulate(replace(RUN, gate=spec))
    assert behind.total_time_s == pytest.approx(alone.total_time_s, rel=0.01)
    for name, figures in alone.tenants.items():
        assert figures.latency_s is not None
        latency_s = behind.tenants[name].latency_s
        assert latency_s is not None
        assert latency_s.p50 == pytest.approx(figures.latency_s.p50, rel=0.05)


def test_operations_and_the_order_alone_agree() -> None:
    """The production operations dispatch as the order alone does."""
    spec = GateSpec(8, "fcfs", deadline_s=3600.0)
    runs = [simulate(replace(RUN, gate=replace(spec, pure=pure))) for pure in (False, True)]
    assert runs[0].total_time_s == pytest.approx(runs[1].total_time_s, rel=0.01)
    waits = [run.tenants["quiet"].ttft_s for run in runs]
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[0].p50 == pytest.approx(waits[1].p50, rel=0.05)


def test_the_gates_file(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text("slots: 4\ntenants:\n  a: {weight: 2, rate_per_s: 10, burst: 100, tier: premium}\n  b:\n")
    spec = read_gate(path, order="bwfq")
    assert spec.slots == 4
    assert spec.tenants["a"].share == Share(2.0, 10.0, 100.0)
    assert spec.tenants["b"] == GateTenant()
    path.write_text("slots: 4\na: {weight: 2}\n")
    assert read_gate(path, order="bwfq").tenants["a"].share.weight == 2.0


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
        ("[", "line"),
    ],
)
def test_a_mistake_in_the_gates_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as refused:
        read_gate(path, order="bwfq")
    assert "gate.yaml" in str(refused.value)
