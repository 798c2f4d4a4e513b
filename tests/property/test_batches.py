"""Batches under failures: whatever dies, each line has one result, and no line is charged twice."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.world.memory_gate import Gate
from tests.support.world.store_faults import StoreFaults
from tests.support.world.story import batch_gate, batch_process, ended, errors, line, output, runner, started
from tests.support.world.virtual_time import VirtualTimeLoop
from tests.support.world.worker_client import SHED, UNREACHABLE, WELL, Act, dies_after

ACTS = [WELL, SHED, UNREACHABLE, dies_after(0), dies_after(2), Act(token_s=20.0), Act(start_s=40.0)]
TOKENS = 3
COST = 10 + 2 * TOKENS


async def killed_after(gate: Gate, seconds: float, *, at_once: bool) -> None:
    """Run batches in a new process for a while. `at_once`: it dies and cannot release what it has claimed."""
    faults = StoreFaults(Random(0), lambda _: 0.0)
    context = batch_process(gate)
    context.store = gate.store.view(gate.clock, faults)
    async with runner(gate, context):
        await gate.clock.sleep(seconds)
        faults.away = at_once  # after its death no request of it has a reply


def line_of(kind: str, name: str) -> dict[str, Any]:
    if kind == "bad":
        return {"custom_id": name}
    return line(name, model="unknown") if kind == "model" else line(name)


async def story(kinds: list[str], acts: list[Act], lives: list[tuple[float, bool]]) -> None:
    gate = await batch_gate()
    gate.workers.acts.extend(acts)
    batch = await started(gate, *(line_of(kind, f"r{number}") for number, kind in enumerate(kinds)))
    for seconds, at_once in lives:
        await killed_after(gate, seconds, at_once=at_once)
    async with runner(gate, batch_process(gate)):
        over = await ended(gate, batch)
    found, wrong = await output(gate, over), await errors(gate, over)
    assert over.status == "completed"
    assert (over.total, over.completed, over.failed) == (len(kinds), len(found), len(wrong))
    by_name = {each["custom_id"]: each for each in [*found, *wrong]}
    assert len(by_name) == len(found) + len(wrong) == len(kinds)
    for number, kind in enumerate(kinds):
        status = by_name[f"r{number}"]["response"]["status_code"]
        expected = {"good": {200, 502}, "bad": {400}, "model": {404}}  # 502: three workers died with the line
        assert status in expected[kind]
    assert gate.spent("a") <= kinds.count("good") * COST, "no line is charged twice"
    assert gate.spent("a") >= len(found) * COST
    await gate.at_rest()


@given(
    st.lists(st.sampled_from(["good", "good", "good", "bad", "model"]), min_size=1, max_size=40),
    st.lists(st.sampled_from(ACTS), max_size=30),
    st.lists(st.tuples(st.floats(0.0, 60.0), st.booleans()), max_size=4),
)
@example(["good"] * 3, [Act(token_s=90.0)] * 3, [(200.0, True), (200.0, True)])
@settings(max_examples=60, deadline=None)
def test_each_line_has_one_result(kinds: list[str], acts: list[Act], lives: list[tuple[float, bool]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as loop:
        loop.run(story(kinds, acts, lives))
