"""An agent that serves in the background of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpu_worker.service.agent import AgentSettings
from tests.support.worker.harness import WorkerHarness, order
from tests.support.world.virtual_time import START

SETTINGS = AgentSettings()
HEARTBEAT_S = 1.2 * SETTINGS.heartbeat_s
"""The longest time between two heartbeats."""
LONG = order(max_tokens=900, deadline_at=START + 1000)


@asynccontextmanager
async def serving(harness: WorkerHarness) -> AsyncIterator[WorkerHarness]:
    """Join and serve. `harness.stop` is the signal; `harness.serving` then drains."""
    await harness.agent.join()
    harness.serving = asyncio.ensure_future(harness.agent.serve(harness.stop.wait()))
    try:
        yield harness
        assert harness.stop.is_set() or not harness.serving.done(), "the heartbeats ended"
    finally:
        harness.serving.cancel()
        await asyncio.wait({harness.serving})


async def drained(harness: WorkerHarness) -> None:
    harness.stop.set()
    await harness.serving
