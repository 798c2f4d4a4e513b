"""Writes the metrics of a worker that has served one request, with every metric that a worker writes."""

from __future__ import annotations

from gpu_worker.engines.interface import EngineFacts
from gpu_worker.service.metric_lines import MetricLines
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine
from tests.support.world.virtual_time import run


def write_metrics(pool: str, model: str) -> None:
    """Write the lines to standard output."""
    run(_written(pool, model))


async def _written(pool: str, model: str) -> None:
    harness = WorkerHarness(ScriptedEngine(facts=EngineFacts(model, 1000, 1.0)))
    await harness.execute(order(model=model))
    MetricLines(harness.executions, pool, harness.clock, 60.0).write()
