"""A worker's metrics as lines that CloudWatch makes metrics of, and the strictness of their reader in these tests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.model.scaling import FleetLoad, PoolDelays, ScaleReport
from dispatcher.policies.tiers import Tier
from functions.observability import publish_delays, publish_load, publish_scaling
from gpu_worker.engines.interface import EngineError, EngineStats
from gpu_worker.engines.swapping.swap_counts import SwapCounts
from gpu_worker.policies.preemption.costs import Eviction, Strategy
from gpu_worker.policies.preemption.victims import Resident
from gpu_worker.policies.scheduling_stats import SchedulingGauges, SchedulingStats
from gpu_worker.service.executions.tally import FIRST_TOKENS_MAX, Tally
from gpu_worker.service.metric_lines import MetricLines
from tests.support.emf import DIMENSIONS_MAX, METRICS_MAX, Series, parse, series_in
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.metric_lines import write_metrics
from tests.support.worker.scripted_engine import FailingEngine, ScriptedEngine

pytestmark = pytest.mark.virtual_time

TENANT = "canary-tenant-3317"
DIMENSIONS = (("model", "scripted"), ("pool", "gpus"), ("service", "headgate"))


class EngineWithCounts(ScriptedEngine):
    restarts = 1
    swaps = SwapCounts(3, 2)

    def __init__(self) -> None:
        super().__init__()
        self.counts = SchedulingStats(native=2, expired=4)
        self.counts.count_eviction(Eviction(Resident("r", Tier.BACKGROUND, 1, 1, 1), Strategy.SWAP))
        self.counts.count_eviction(Eviction(Resident("s", Tier.STANDARD, 1, 1, 1), Strategy.SWAP))

    def stats(self) -> EngineStats:
        return EngineStats(12, 1, 0.25, super().stats().tenants, self.counts, SchedulingGauges(aged=8))


def lines_of(harness: WorkerHarness) -> MetricLines:
    return MetricLines(harness.executions, "gpus", harness.clock, 60.0)


def values(text: str) -> dict[str, tuple[float, ...]]:
    """Return the values by metric; of a metric in several lines, all of them. Check their dimensions."""
    found: dict[str, tuple[float, ...]] = {}
    for series in series_in(text):
        assert (series.namespace, series.dimensions) == ("headgate", DIMENSIONS)
        found[series.name] = found.get(series.name, ()) + series.values
    return found


def test_the_namespace_is_the_one_of_the_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "staging")
    lines_of(WorkerHarness(EngineWithCounts())).write()
    assert {series.namespace for series in series_in(capsys.readouterr().out)} == {"staging"}


async def test_the_first_lines_have_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness(EngineWithCounts())
    await harness.execute(order(tenant=TENANT))
    harness.executions.watch.sheds[Tier.BACKGROUND] += 5
    lines_of(harness).write()
    written = capsys.readouterr().out
    assert values(written) == {
        "engine_running": (1,),
        "engine_waiting": (12,),
        "output_tokens_generated": (3,),
        "failed_on_worker": (0,),
        "preempted_swap": (2,),
        "preempted_recompute": (0,),
        "preempted_drop": (0,),
        "preempted_natively": (2,),
        "aged": (8,),
        "shed": (5,),
        "deadlines_missed": (4,),
        "engine_restarts": (1,),
        "model_swaps": (3,),
        "model_swaps_failed": (2,),
        "kv_use": (25,),
        "worker_ttft_ms": (100,),
    }
    assert TENANT not in written


async def test_counts_are_those_of_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness(engine := EngineWithCounts())
    lines = lines_of(harness)
    lines.write()
    engine.counts.native += 7
    await harness.execute(order())
    lines.write()
    lines.write()
    found = values(capsys.readouterr().out)
    assert found["preempted_natively"] == (2, 7, 0)
    assert found["output_tokens_generated"] == (0, 3, 0)
    assert found["engine_waiting"] == (12, 12, 12)
    assert found["worker_ttft_ms"] == (100,)


async def test_a_request_that_fails_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness(FailingEngine(EngineError("engine_failed", "broken"), after=1))
    await harness.execute(order())
    refusing = WorkerHarness(FailingEngine(EngineError("invalid_request", "no"), after=1))
    await refusing.execute(order())
    for each in (harness, refusing):
        lines_of(each).write()
    assert values(capsys.readouterr().out)["failed_on_worker"] == (1, 0)


async def test_lines_are_written_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness()
    task = asyncio.ensure_future(lines_of(harness).run())
    await harness.clock.sleep(3 * 60 + 1)
    task.cancel()
    assert len(values(capsys.readouterr().out)["engine_running"]) == 3


async def test_many_first_tokens_take_several_short_lines(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness()
    harness.executions.tally.first_token_ms.extend(1234.5 + number for number in range(FIRST_TOKENS_MAX + 9))
    lines_of(harness).write()
    written = capsys.readouterr().out
    assert max(len(line) for line in written.splitlines()) < 4096
    assert values(written)["worker_ttft_ms"] == tuple(1243.5 + number for number in range(FIRST_TOKENS_MAX))


async def test_an_error_does_not_end_the_worker(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(ScriptedEngine):
        def stats(self) -> EngineStats:
            raise RuntimeError

    lines_of(WorkerHarness(Broken())).write()
    assert capsys.readouterr().out == ""


def test_what_is_taken_is_not_taken_again() -> None:
    tally = Tally(3, 1)
    tally.first_token_ms.append(5.0)
    assert (tally.take().output_tokens, list(tally.first_token_ms)) == (3, [])
    assert (tally.take().output_tokens, tally.failed) == (0, 0)


def test_every_metric_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    write_metrics("gpus", "scripted")
    page = (Path(__file__).parents[3] / "docs" / "watching.md").read_text(encoding="utf-8")
    section = page.partition("\n## Metrics in CloudWatch\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(values(capsys.readouterr().out))


def test_the_lines_of_the_sweep_are_as_strict(capsys: pytest.CaptureFixture[str]) -> None:
    publish_load("gpus", FleetLoad(1, 0, 0, {"premium": 2}, 0.0, 0.0, 0.0))
    publish_delays("gpus", PoolDelays({"premium": 1.5}, 0.5))
    publish_scaling("gpus", ScaleReport(1))
    assert {series.name for series in series_in(capsys.readouterr().out)} >= {"waiting", "oldest_wait_s"}


GOOD: dict[str, Any] = {
    "_aws": {
        "Timestamp": 1,
        "CloudWatchMetrics": [
            {"Namespace": "n", "Dimensions": [["pool"]], "Metrics": [{"Name": "m", "Unit": "Count"}]},
        ],
    },
    "pool": "p",
    "m": 1,
}


def directive(root: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = root["_aws"]["CloudWatchMetrics"][0]
    return found


BREAKS: list[Callable[[dict[str, Any]], object]] = [
    lambda root: root.update(m=float("nan")),
    lambda root: root.update(m=float("inf")),
    lambda root: root.update(m="1"),
    lambda root: root.update(m=True),
    lambda root: root.update(m=[1] * 101),
    lambda root: root.update(m=[]),
    lambda root: root.update(pool=7),
    lambda root: root.update(pool=""),
    lambda root: root.update(pool="a" * 1025),
    lambda root: root.pop("pool"),
    lambda root: root.pop("m"),
    lambda root: root["_aws"].pop("Timestamp"),
    lambda root: directive(root).update(Namespace=""),
    lambda root: directive(root).update(Dimensions=[[f"d{number}" for number in range(DIMENSIONS_MAX + 1)]]),
    lambda root: directive(root).update(Metrics=directive(root)["Metrics"] * (METRICS_MAX + 1)),
    lambda root: directive(root)["Metrics"][0].update(Unit="Furlongs"),
]


def test_the_reader_takes_a_good_line() -> None:
    assert parse(json.dumps(GOOD)) == [Series("n", "m", (("pool", "p"),), "Count", (1.0,))]


@pytest.mark.parametrize("spoil", BREAKS)
def test_the_reader_refuses_a_bad_line(spoil: Callable[[dict[str, Any]], object]) -> None:
    broken = json.loads(json.dumps(GOOD))
    spoil(broken)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        parse(json.dumps(broken))
