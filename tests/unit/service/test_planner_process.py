"""The planner in a process of its own."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from dispatcher.service.gate.planning import PlannerProcess, plan_of
from dispatcher.shard.proposals import plan_input
from tests.support.world.lone_shard import T0, LoneShard, swap_report


async def test_another_process_makes_the_same_plan() -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": 1.0, "b": 1.0}), swap_report("v", "a", {"a": 1.0, "b": 1.0}))
    shard.call(model="b", cost=30.0)
    picture = plan_input(shard.shard.state, {}, T0 + 60.0)
    process = PlannerProcess()
    try:
        assert await process.run(plan_of, picture, None) == plan_of(picture, None)
        assert await process.run(os.getpid) != os.getpid()
    finally:
        process.stop()


async def test_a_process_that_died_or_takes_too_long_is_replaced() -> None:
    process = PlannerProcess()
    try:
        first = await process.run(os.getpid)
        with pytest.raises(Exception, match="terminated abruptly"):
            await process.run(os._exit, 1)
        second = await process.run(os.getpid)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await process.run(time.sleep, 600)
        third = await process.run(os.getpid)
        assert len({first, second, third}) == 3
    finally:
        process.stop()
