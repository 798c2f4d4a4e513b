"""LoRA adapters of the paged model: places, loads and what they cost, and the order of loaded adapters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerSpec
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, as_json
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, open_workload

PROFILE = load_profile("a100-llama3-8b-chunked")
INPUT, OUTPUT, LOAD_S = 200, 20, 0.5


def asks(at_s: float, tenant: str, adapter: str | None, *, output: int = OUTPUT) -> Arrival:
    return Arrival(at_s, tenant, INPUT, output, adapter=adapter)


def engine_with(
    places: int, policy: str = "tiered:vtc", *, batch: int = 256, loaded_first: bool = False, **tiers: float
) -> PagedEngine:
    profile = PROFILE.model_copy(update={"max_loras": places, "adapter_load_s": LOAD_S, "batch_max": batch})
    made = make_policy(policy, tiers=TierSettings(**tiers))  # type: ignore[arg-type]
    engine = make_engine(profile, made, loaded_first=loaded_first)
    assert isinstance(engine, PagedEngine)
    return engine


def serve(engine: PagedEngine, arrivals: Iterable[Arrival]) -> list[SimRequest]:
    """Return the requests in the order of their ends; those of a run have the names 0, 1, …."""
    served: list[SimRequest] = []
    for number, arrival in enumerate(arrivals):
        while ended := engine.advance(arrival.arrival_s):
            served += ended
        assert engine.submit(SimRequest(str(number), arrival, arrival.arrival_s), arrival.arrival_s)
    while ended := engine.advance(10_000.0):
        served += ended
    return served


def test_a_load_stops_the_batch_and_its_tenant_pays() -> None:
    engine = engine_with(2, adapter_load_tokens=100)
    served = serve(engine, [asks(0, "p", None), asks(20, "a", "x"), asks(40, "a", "x"), asks(60, "b", "y")])
    assert [each.adapter_loads for each in served] == [0, 1, 0, 1]
    plain, first, again, other = (each.ttft_s for each in served)
    assert first - plain == pytest.approx(LOAD_S)
    assert again == pytest.approx(plain)
    assert other == pytest.approx(first)
    paid = {name: each.service for name, each in engine.policy.received.items()}
    cost = WEIGHTED_TOKENS(INPUT, OUTPUT)
    assert paid == {"p": cost, "a": 2 * cost + 100, "b": cost + 100}


def test_no_more_adapters_are_in_use_than_there_are_places() -> None:
    engine, random = engine_with(2, adapter_lead=500.0), Random(3)
    arrivals = [asks(0.05 * number, random.choice("abc"), random.choice((None, *"wxyz"))) for number in range(60)]
    used: list[int] = []
    plan = engine.model.plan

    def noted_plan(now_s: float) -> object:
        step = plan(now_s)
        used.append(len({each.adapter for each in engine.model.batch.running} - {None}))
        return step

    engine.model.plan = noted_plan  # type: ignore[method-assign, assignment]
    served = serve(engine, arrivals)
    assert max(used) == 2
    assert len(served) == 60
    assert engine.policy.waiting == engine.policy.running == 0
    assert sum(each.service for each in engine.policy.received.values()) == 60 * WEIGHTED_TOKENS(
        INPUT, OUTPUT
    ) + 512 * sum(each.adapter_loads for each in served)


@pytest.mark.parametrize(("lead", "passes"), [(0.0, False), (1e9, True)])
def test_loaded_adapters_pass_a_request_that_waits_for_a_place_while_the_lead_allows(lead: float, passes: bool) -> None:
    later = [asks(0.1 + 0.01 * number, "a", "x") for number in range(20)]
    arrivals = [asks(0, "a", "x", output=60), asks(0.05, "b", "y"), *later]
    served = serve(engine_with(1, adapter_lead=lead), arrivals)
    place = [each.tenant for each in served].index("b")
    assert (place > 10) is passes


def test_a_more_urgent_tier_evicts_the_users_of_an_adapter_and_they_do_not_pay_to_come_back() -> None:
    engine = engine_with(1, adapter_load_tokens=100)
    bulk = Arrival(0, "bulk", INPUT, 400, adapter="x", tier="background")
    gold = Arrival(3, "gold", INPUT, OUTPUT, adapter="y", tier="premium")
    served = serve(engine, [bulk, gold])
    assert [(each.tenant, each.adapter_loads) for each in served] == [("gold", 1), ("bulk", 2)]
    assert engine.policy.received["bulk"].service == WEIGHTED_TOKENS(INPUT, 400) + 100


def test_with_loaded_adapters_first_a_tenant_loads_less_often_and_starves_none_of_its_requests() -> None:
    random = Random(1)
    arrivals = [asks(0.001 * number, "a", random.choice("uvwxyz")) for number in range(120)]
    loads = {}
    for first in (False, True):
        engine = engine_with(1, batch=2, loaded_first=first)
        served = serve(engine, arrivals)
        loads[first] = sum(each.adapter_loads for each in served)
        assert len(served) == 120
    assert loads[True] <= 0.6 * loads[False], loads


def run(arrivals: list[Arrival], places: int | None, **fields: object) -> Run:
    profile = PROFILE.model_copy(update={"max_loras": places})
    return simulate(RunSpec(ListWorkload("asked", arrivals), "vtc", profile, **fields))  # type: ignore[arg-type]


def test_a_run_counts_loads_and_an_engine_without_places_serves_an_adapter_as_its_model(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "arrival_s,tenant,input_tokens,output_tokens,adapter\n0,a,100,10,x\n5,a,100,10,\n9,b,100,10,y\n9.5,b,100,10,x\n"
    )
    arrivals = list(open_workload([str(file)]))
    assert [each.adapter for each in arrivals] == ["x", None, "y", "x"]
    found = run(arrivals, 1)
    assert (found.adapter_loads, found.served) == ({"a": 1, "b": 2}, 4)
    assert as_json(found)["adapter_loads"] == found.adapter_loads
    without = run(arrivals, None)
    assert without.adapter_loads == {}
    assert "adapter_loads" not in as_json(without)
    assert run(arrivals, 1, loaded_first=True).policy == "vtc+loaded-first"


def test_the_workers_of_a_fleet_have_adapters_too() -> None:
    profile = PROFILE.model_copy(update={"max_loras": 1})
    fleet = FleetSpec([WorkerSpec("w", "k", {"m": Loadable(profile, 1.0, 8)}, "m")])
    arrivals = [asks(float(number), "a", "xy"[number % 2]) for number in range(6)]
    spec = RunSpec(ListWorkload("asked", arrivals), "vtc", fleet, planner="fcfs")
    found = simulate(spec)
    assert (found.served, found.adapter_loads) == (6, {"a": 6})
    assert as_json(found)["adapter_loads"] == {"a": 6}
