"""A tenant that lets a fleet swap forth and back pays for it where it competes with others: in the queue of a model."""

from __future__ import annotations

import pytest

from headgate.simulator.engines.profile import load_profile
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerSpec
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.sources import ListWorkload
from tests.support.simulator.fleets import requests_of

END_S = 120.0
TENANTS = ("quiet", "swapper")


def workload(*, is_apart: bool = False) -> ListWorkload:
    """Return two equal tenants of model a, of which one also uses model b every 10 s; with `is_apart` a third does."""
    hot = [(0.2 * at, tenant, "a", "interactive", 200) for at in range(int(5 * END_S)) for tenant in TENANTS]
    user = "third" if is_apart else "swapper"
    rare = [(10.0 * at + 3.0, user, "b", "interactive", 20) for at in range(int(END_S / 10))]
    return requests_of(sorted(hot + rare))


def play(charge: float, *, is_apart: bool = False) -> Run:
    able = {model: Loadable(load_profile("a100-llama3-8b-chunked"), 3.0, 32) for model in "ab"}
    fleet = FleetSpec([WorkerSpec("w", "k", able, "a")], default_class="interactive")
    gate = GateSpec(1, swap_charge=charge)
    return simulate(RunSpec(workload(is_apart=is_apart), "fcfs", fleet, planner="plan", gate=gate))


def waits(run: Run, tenant: str) -> float:
    found = run.tenants[tenant].ttft_s
    assert found is not None
    return found.p50


def test_the_tenant_that_needs_the_swaps_waits_longer_than_the_other() -> None:
    free, charged = play(0.0), play(1.0)
    assert free.swap_charges == {}
    assert charged.swap_charges["swapper"] > 3 * charged.swap_charges["quiet"] > 0
    assert waits(free, "quiet") == pytest.approx(waits(free, "swapper"), rel=0.15)
    assert waits(charged, "quiet") < 0.7 * waits(free, "quiet")
    assert waits(charged, "swapper") > 2 * waits(charged, "quiet")
    assert charged.served == free.served


def test_equal_tenants_pay_equally_for_the_swap_back_after_a_third_one() -> None:
    free, charged = (play(charge, is_apart=True) for charge in (0.0, 1.0))
    assert charged.swap_charges["quiet"] == charged.swap_charges["swapper"] > 0
    assert charged.swap_charges["third"] > charged.swap_charges["quiet"]
    assert [waits(charged, tenant) for tenant in TENANTS] == [waits(free, tenant) for tenant in TENANTS]
