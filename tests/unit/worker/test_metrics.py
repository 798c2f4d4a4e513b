"""A worker's metrics: /metrics as Prometheus reads it, and lines that CloudWatch makes metrics of."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.model.fleet import FleetLoad, PoolDelays, ScaleReport
from dispatcher.policies.tiers import Tier
from functions.observability import publish_delays, publish_load, publish_scaling
from gpu_worker.engines.interface import EngineError, EngineStats
from gpu_worker.engines.supervised import SwapCounts
from gpu_worker.policies.preemption import Eviction, Resident, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingGauges, SchedulingStats, TierGauges, outermost
from gpu_worker.service.executions.engine_reader import FIRST_TOKENS_MAX, Tally
from gpu_worker.service.health.failures import FailureKind, ProbeVerdict
from gpu_worker.service.metric_lines import MetricLines
from gpu_worker.service.metrics import TENANTS_MAX, make_registry
from tests.support.emf import series_in
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.metric_lines import write_metrics
from tests.support.worker.scripted_engine import FailingEngine, ScriptedEngine
from tests.support.world.virtual_time import START, run

ALERTS = Path(__file__).parents[3] / "gpu_worker/alerts.yaml"

LABELS = ("strategy", "tier", "kind", "quantile", "tenant", "by", "reason", "model", "outcome", "verdict")

P, B = Tier.PREMIUM, Tier.BACKGROUND


class EngineWithStats(ScriptedEngine):
    restarts = 1
    swaps = SwapCounts(3, 1, 2.5, sleeps=9, sleeps_failed=2, wakes=7, wakes_failed=4, evicted=5, wake_s=0.5)
    asleep: ClassVar = {"other": SimpleNamespace(sleep_bytes=16e9)}

    def __init__(self) -> None:
        super().__init__()
        counts = SchedulingStats(native=2, resumed=1, expired=4, recomputed_tokens=70, swapped_out_bytes=1e6)
        counts.count_eviction(Eviction(Resident("r", B, 1, 1, 1), Strategy.SWAP))
        counts.record_cost(Strategy.SWAP, predicted_s=0.5, measured_s=0.75)
        self.counts = counts

    def stats(self) -> EngineStats:
        now = SchedulingGauges(
            aged=8,
            tiers={P: TierGauges(3, 1), B: TierGauges(9, 0)},
            counters={f"t{number}": float(number) for number in range(TENANTS_MAX + 50)},
            difference=12.0,
            difference_bound=100.0,
            swap_bytes_total=1e9,
            swap_bytes_used=1e6,
            reserve_blocks=30,
            reserve_used=10,
        )
        return EngineStats(12, 1, 0.25, super().stats().tenants, self.counts, now)


def scraped(harness: WorkerHarness) -> dict[tuple[str, ...], float]:
    text = generate_latest(make_registry(harness.executions)).decode()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for sample in samples
    }


async def after_one_request() -> dict[tuple[str, ...], float]:
    harness = WorkerHarness(EngineWithStats())
    await harness.execute(order(tier=P))
    await harness.execute(order("late", tier=B, max_tokens=500, deadline_at=START + 3.05))
    harness.executions.watch.sheds[B] += 5
    harness.executions.health.failures[FailureKind.FAILURE] += 2
    harness.executions.health.verdicts[ProbeVerdict.SICK] += 3
    harness.executions.health.is_sick = True
    harness.gate.away = True
    harness.executions.fence("old#1", is_old=True)
    return scraped(harness)


def test_every_metric_has_its_labels() -> None:
    found = run(after_one_request())
    expected: dict[tuple[str, ...], Any] = {
        ("headgate_preemptions_total", "swap", "background"): 1,
        ("headgate_preemptions_total", "recompute", "standard"): 0,
        ("headgate_native_evictions_total",): 2,
        ("headgate_resumed_total",): 1,
        ("headgate_recomputed_tokens_total",): 70,
        ("headgate_swapped_out_bytes_total",): 1e6,
        ("headgate_swapped_in_bytes_total",): 0,
        ("headgate_preemption_costs_total", "swap"): 1,
        ("headgate_preemption_predicted_seconds_total", "swap"): 0.5,
        ("headgate_preemption_measured_seconds_total", "swap"): 0.75,
        ("headgate_requests_waiting", "background"): 9,
        ("headgate_requests_running", "premium"): 1,
        ("headgate_kv_use_ratio",): 0.25,
        ("headgate_service_difference",): 12,
        ("headgate_service_difference_bound",): 100,
        ("headgate_swap_space_bytes",): 1e9,
        ("headgate_swap_space_used_bytes",): 1e6,
        ("headgate_reserve_blocks",): 30,
        ("headgate_reserve_used_blocks",): 10,
        ("headgate_slo_attainment_ratio", "premium", "ttft"): 1,
        ("headgate_slo_attainment_ratio", "premium", "tpot"): 0,
        ("headgate_slo_samples", "premium", "e2e"): 1,
        ("headgate_slo_samples", "standard", "e2e"): 0,
        ("headgate_slo_target_seconds", "premium", "ttft"): 0.2,
        ("headgate_slo_target_seconds", "background", "ttft"): float("inf"),
        ("headgate_slo_seconds", "premium", "ttft", "0.99"): pytest.approx(0.1),
        ("headgate_sheds_total", "background"): 5,
        ("headgate_shed_level",): 0,
        ("headgate_deadline_expiries_total", "engine"): 4,
        ("headgate_deadline_expiries_total", "worker"): 1,
        ("headgate_outbox_reports",): 1,
        ("headgate_attempts_returned_total", "lost"): 1,
        ("headgate_attempts_returned_total", "not_begun"): 0,
        ("headgate_engine_restarts_total",): 1,
        ("headgate_engine_errors_total", "failure"): 2,
        ("headgate_engine_errors_total", "overload"): 0,
        ("headgate_engine_probes_total", "sick"): 3,
        ("headgate_engine_sick",): 1,
        ("headgate_slots_open",): 2,
        ("headgate_model_loaded", "scripted"): 1,
        ("headgate_model_swaps_total", "done"): 3,
        ("headgate_model_swaps_total", "failed"): 1,
        ("headgate_model_swap_seconds",): 2.5,
        ("headgate_model_wake_seconds",): 0.5,
        ("headgate_model_sleeps_total", "done"): 9,
        ("headgate_model_sleeps_total", "failed"): 2,
        ("headgate_model_sleeps_total", "evicted"): 5,
        ("headgate_model_wakes_total", "done"): 7,
        ("headgate_model_wakes_total", "failed"): 4,
        ("headgate_model_asleep_bytes", "other"): 16e9,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("headgate_slo_attainment_ratio", "standard", "ttft") not in found, "nothing was asked, nothing was missed"


def test_of_many_tenants_the_lowest_and_the_highest_are_reported() -> None:
    counters = [name for name in run(after_one_request()) if name[0] == "headgate_tenant_counter"]
    assert len(counters) == TENANTS_MAX
    assert {("headgate_tenant_counter", "t0"), ("headgate_tenant_counter", "t149")} <= set(counters)
    assert outermost({"a": 1.0, "b": 3.0, "c": 2.0}, 2) == {"a": 1.0, "b": 3.0}
    assert outermost({"a": 1.0, "b": 3.0, "c": 2.0}, 1) == {"b": 3.0}


async def test_an_engine_without_tiers_reports_its_sums() -> None:
    harness = WorkerHarness()
    harness.engine.waiting = 7
    assert scraped(harness)[("headgate_requests_waiting",)] == 7


async def test_two_workers_in_a_process_have_figures_of_their_own() -> None:
    first, second = WorkerHarness(), WorkerHarness()
    first.engine.waiting = 7
    assert scraped(second)[("headgate_requests_waiting",)] == 0
    assert scraped(first)[("headgate_requests_waiting",)] == 7


def test_alerts_parse_and_use_existing_metrics() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {"alert", "expr", "labels", "annotations"} <= set.intersection(*(set(rule) for rule in rules))
    asked = {name for rule in rules for name in re.findall(r"headgate_\w+", rule["expr"])}
    known = {name[0] for name in run(after_one_request())}
    assert len(asked) >= 5
    assert asked <= known
    labels = {label for rule in rules for label in re.findall(r"(tier|kind)=", rule["expr"])}
    assert labels == {"tier", "kind"}


@pytest.mark.parametrize("number", ["> 20", "< 0.995"])
def test_the_thresholds_are_those_stated(number: str) -> None:
    assert number in ALERTS.read_text()


TENANT = "canary-tenant-3317"

DIMENSIONS = (("model", "scripted"), ("pool", "gpus"), ("service", "headgate"))


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
    lines_of(WorkerHarness(EngineWithStats())).write()
    assert {series.namespace for series in series_in(capsys.readouterr().out)} == {"staging"}


@pytest.mark.virtual_time
async def test_the_first_lines_have_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness(EngineWithStats())
    await harness.execute(order(tenant=TENANT))
    harness.executions.watch.sheds[Tier.BACKGROUND] += 5
    lines_of(harness).write()
    written = capsys.readouterr().out
    assert values(written) == {
        "engine_running": (1,),
        "engine_waiting": (12,),
        "output_tokens_generated": (3,),
        "failed_on_worker": (0,),
        "preempted_swap": (1,),
        "preempted_recompute": (0,),
        "preempted_drop": (0,),
        "preempted_natively": (2,),
        "aged": (8,),
        "shed": (5,),
        "deadlines_missed": (4,),
        "engine_restarts": (1,),
        "model_swaps": (3,),
        "model_swaps_failed": (1,),
        "kv_use": (25,),
        "worker_ttft_ms": (100,),
    }
    assert TENANT not in written


@pytest.mark.virtual_time
async def test_counts_are_those_of_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness(engine := EngineWithStats())
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


@pytest.mark.virtual_time
async def test_a_request_that_fails_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness(FailingEngine(EngineError("engine_failed", "broken"), after=1))
    await harness.execute(order())
    refusing = WorkerHarness(FailingEngine(EngineError("invalid_request", "no"), after=1))
    await refusing.execute(order())
    for each in (harness, refusing):
        lines_of(each).write()
    assert values(capsys.readouterr().out)["failed_on_worker"] == (1, 0)


@pytest.mark.virtual_time
async def test_lines_are_written_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness()
    task = asyncio.ensure_future(lines_of(harness).run())
    await harness.clock.sleep(3 * 60 + 1)
    task.cancel()
    assert len(values(capsys.readouterr().out)["engine_running"]) == 3


@pytest.mark.virtual_time
async def test_many_first_tokens_take_several_short_lines(capsys: pytest.CaptureFixture[str]) -> None:
    harness = WorkerHarness()
    harness.executions.tally.first_token_ms.extend(1234.5 + number for number in range(FIRST_TOKENS_MAX + 9))
    lines_of(harness).write()
    written = capsys.readouterr().out
    assert max(len(line) for line in written.splitlines()) < 4096
    assert values(written)["worker_ttft_ms"] == tuple(1243.5 + number for number in range(FIRST_TOKENS_MAX))


@pytest.mark.virtual_time
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
