"""A leader plans its fleet. Whatever becomes of the planner, each model that calls wait for is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from dispatcher.model.commands import Attempts
from dispatcher.model.facts import ModelOrdered, Planned
from dispatcher.policies.planning.fleet import DRAIN_S
from dispatcher.service.gate.follower import Offload, at_once
from dispatcher.service.gate.planning import REPLAN_S, SWEEP_S, do_nothing, plan_of
from dispatcher.service.link.link import Link
from dispatcher.shard.codec import decode_entry
from tests.support.world.lone_shard import swap_report
from tests.support.world.processes import SHARD, World, new_call, start_worker

BOUND_S = 2 * (10.0 + DRAIN_S + 1.0)
"""Three waiting models take turns on two workers. One or two are loaded in half of it."""
SWAPS = {"a": 1.0, "b": 1.0, "c": 1.0}


async def frozen(_work: Callable[..., Any], *_arguments: Any) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def failing(_work: Callable[..., Any], *_arguments: Any) -> NoReturn:
    raise ValueError


async def mad(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return a plan that never loads what calls wait for, of workers that do not exist and of another time."""
    plan = work(*arguments)
    return type(plan)(plan.made_at, {"w1": "a", "w2": "b", "gone": "c"}, {})


def facts(world: World, kind: type[Any]) -> list[Any]:
    entries = world.data.logs[SHARD].entries
    found = [decode_entry(data) for _, data in sorted(entries.items())]
    return [fact for entry in found for fact in entry.facts if isinstance(fact, kind)]


async def swapping_worker(world: World, name: str, model: str) -> Link:
    """Start a worker that obeys: it swaps within a second. Return its link."""
    link = world.link(name)

    async def heartbeats() -> NoReturn:
        has = model
        while True:
            answer = await link.do(swap_report(name, has, SWAPS))
            await asyncio.sleep(1)
            has = answer.load or has if isinstance(answer, Attempts) else has

    world.host(name).spawn(heartbeats())
    return link


async def fleet(world: World, plan_offload: Offload, *gates: str) -> dict[str, Link]:
    """Start gates and two workers, and return the workers' links."""
    for name in gates or ("g1",):
        await world.gate(name, plan_offload)
        await asyncio.sleep(0.2)
    links = {"w1": await swapping_worker(world, "w1", "a"), "w2": await swapping_worker(world, "w2", "b")}
    await asyncio.sleep(6)
    return links


async def test_a_worker_is_asked_for_a_report_as_soon_as_its_order_is_in_the_log(world: World) -> None:
    links = await fleet(world, at_once)
    front = world.link("front")
    await world.on("front", front.do(new_call(world, front, model="c")))
    while not (ordered := facts(world, ModelOrdered)):
        assert not any(link.report_asked.is_set() for link in links.values()), "nothing is ordered"
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    asked = [name for name, link in links.items() if link.report_asked.is_set()]
    assert asked == [fact.worker for fact in ordered]


async def loaded(world: World) -> set[str]:
    return {worker.model for worker in (await world.folded()).shard.fleet()}


async def test_a_missing_model_is_planned_and_loaded(world: World) -> None:
    await fleet(world, at_once)
    front = world.link("front")
    for model in "abcabcabc":
        await world.on("front", front.do(new_call(world, front, model=model)))
    await asyncio.sleep(2 * REPLAN_S)
    plan = facts(world, Planned)[-1]
    assert {each.worker for each in plan.workers} == {"w1", "w2"}
    assert {(group.tenant, group.model) for group in plan.groups} >= {("acme", "c")}
    assert all(0 <= number < len(plan.groups) for each in plan.workers for number in each.order)
    await asyncio.sleep(BOUND_S)
    assert "c" in {fact.model for fact in facts(world, ModelOrdered)}


async def test_plans_are_made_when_a_miss_is_predicted_and_at_the_sweep(world: World) -> None:
    await fleet(world, at_once)
    await asyncio.sleep(10 * SWEEP_S)
    assert 9 <= len(facts(world, Planned)) <= 12


async def test_the_planner_is_started_before_a_plan_is_due(world: World) -> None:
    """The start of a process takes a second, in which the first requests for a missing model would wait."""
    calls: list[Any] = []

    async def noted(work: Callable[..., Any], *arguments: Any) -> Any:
        calls.append(work)
        return work(*arguments)

    await fleet(world, noted)
    await asyncio.sleep(2 * SWEEP_S)
    assert calls[:2] == [do_nothing, plan_of]
    assert calls.count(do_nothing) == 1


async def test_the_error_of_a_forecast_is_logged_when_it_ends(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headgate.planning")
    await fleet(world, at_once)
    front = world.link("front")
    for turn in range(90):
        await world.on("front", front.do(new_call(world, front, model="abc"[turn % 3])))
        await asyncio.sleep(REPLAN_S)
    lines = [each.getMessage() for each in caplog.records if "plans forecast" in each.getMessage()]
    assert 1 <= len(lines) <= 3
    assert "mean error of a tenant" in lines[0]


async def test_a_fleet_of_one_model_is_not_planned(world: World) -> None:
    calls: list[Any] = []

    async def noted(work: Callable[..., Any], *arguments: Any) -> Any:
        calls.append(work)
        return work(*arguments)

    await world.gate("g1", noted)
    await start_worker(world, slots=1)
    front = world.link("front")
    for _ in range(3):
        await world.on("front", front.do(new_call(world, front)))
    await asyncio.sleep(3 * SWEEP_S)
    assert not calls
    assert not facts(world, Planned)
    assert not facts(world, ModelOrdered)


@pytest.mark.parametrize("offload", [frozen, failing, mad])
async def test_models_are_loaded_whatever_the_planner_does(world: World, offload: Offload) -> None:
    await fleet(world, offload)
    front = world.link("front")
    await world.on("front", front.do(new_call(world, front, model="c")))
    await asyncio.sleep(BOUND_S / 2)
    assert "c" in await loaded(world)
    assert world.leaders == ["g1"]


async def test_the_next_leader_plans_if_one_dies_while_it_plans(world: World) -> None:
    await world.gate("g1", frozen)
    await asyncio.sleep(0.2)
    await fleet(world, at_once, "g2")
    assert world.leaders == ["g1"]
    assert not facts(world, Planned)
    world.host("g1").kill()
    front = world.link("front")
    await world.on("front", front.do(new_call(world, front, model="c")))
    await asyncio.sleep(15)
    assert world.leaders == ["g2"]
    assert facts(world, Planned)
    assert "c" in await loaded(world)
