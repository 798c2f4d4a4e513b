"""Writes a worker's metrics to standard output in CloudWatch's embedded metric format (EMF), for a worker on ECS.

CloudWatch Logs makes metrics of such lines in any log group of the standard class. The log driver of ECS needs no
option for it (CloudWatch User Guide, "Using the PutLogEvents API to send manually-created embedded metric format
logs"). The dimensions are pool and model, never a worker or a tenant: CloudWatch bills each combination of a metric and
its dimensions, and adds up the workers of a pool by itself.

Gauges are as of the moment. Counts are those of the interval, so that their sum over a period is the pool's.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from dispatcher.ports import Clock
from dispatcher.processes.metrics_namespace import SERVICE, metrics_namespace
from gpu_worker.engines.interface import EngineStats
from gpu_worker.engines.supervised import SwapCounts
from gpu_worker.policies.preemption import Strategy
from gpu_worker.service.executions.executions import Executions

_VALUES_MAX = 50
"""The most values of a metric in a line. CloudWatch accepts 100, but at 100 Powertools writes a line by itself. A line
stays below the 4096 bytes that a pipe takes at once, so that it is not mixed with what a child process writes."""

logger = logging.getLogger("headgate.worker")


@dataclass(eq=False)
class MetricLines:
    """`every_s`: the interval of `run`, in seconds."""

    executions: Executions
    pool: str
    clock: Clock
    every_s: float
    _counted: dict[str, int] = field(default_factory=dict)
    """The counters at the last writing."""

    async def run(self) -> None:
        """Write the metrics each interval, until cancelled."""
        while True:
            await self.clock.sleep(self.every_s)
            self.write()

    def write(self) -> None:
        """Write the metrics since the last call. An error is logged: it must not end the worker."""
        try:
            self._write()
        except Exception as error:
            logger.error("the metrics could not be written: %s", type(error).__name__)

    def _write(self) -> None:
        stats, tally = self.executions.engine.stats(), self.executions.tally.take()
        gauges = {"engine_running": stats.running, "engine_waiting": stats.waiting}
        counts = {"output_tokens_generated": tally.output_tokens, "failed_on_worker": tally.failed}
        lines = [_line(gauges | counts | self._increases(_counters_of(self.executions, stats)), MetricUnit.Count)]
        lines.append(_line({"kv_use": 100 * stats.kv_use}, MetricUnit.Percent))
        times_ms = list(tally.first_token_ms)
        for begin in range(0, len(times_ms), _VALUES_MAX):
            lines.append(_Line({"worker_ttft_ms": times_ms[begin : begin + _VALUES_MAX]}, MetricUnit.Milliseconds))
        for line in lines:
            line.print(pool=self.pool, model=self.executions.engine.facts.model)
        sys.stdout.flush()

    def _increases(self, counters: dict[str, int]) -> dict[str, int]:
        increases = {name: max(0, count - self._counted.get(name, 0)) for name, count in counters.items()}
        self._counted = counters
        return increases


def _counters_of(executions: Executions, stats: EngineStats) -> dict[str, int]:
    """Return what a worker has counted since its start, by the name of the metric."""
    counts, watch = stats.counts, executions.watch
    swaps = getattr(executions.engine, "swaps", SwapCounts())  # of a worker of several models (engines/model_swaps.py)
    evicted = dict(counts.preemptions)
    preempted = {
        f"preempted_{strategy.value}": sum(number for (used, _), number in evicted.items() if used is strategy)
        for strategy in Strategy
    }
    return preempted | {
        "preempted_natively": counts.native,
        "aged": stats.gauges.aged,  # begins at zero with each engine
        "shed": watch.sheds.total(),
        "deadlines_missed": counts.expired + watch.expiries.total(),
        "engine_restarts": getattr(executions.engine, "restarts", 0),  # of a supervised engine (engines/supervised.py)
        "model_swaps": swaps.done,
        "model_swaps_failed": swaps.failed,
    }


@dataclass(frozen=True, slots=True)
class _Line:
    values: Mapping[str, Sequence[float]]
    unit: MetricUnit

    def print(self, *, pool: str, model: str) -> None:
        record = EphemeralMetrics(namespace=metrics_namespace(), service=SERVICE)
        record.add_dimension(name="pool", value=pool)
        record.add_dimension(name="model", value=model)
        for name, values in self.values.items():
            for value in values:
                record.add_metric(name=name, unit=self.unit, value=value)
        record.flush_metrics()


def _line(values: Mapping[str, float], unit: MetricUnit) -> _Line:
    return _Line({name: [value] for name, value in values.items()}, unit)
