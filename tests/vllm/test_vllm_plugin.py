"""What an operator of a bare vLLM meets: settings, priorities, forged fields, and the reports to its /metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from vllm import SamplingParams
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm import reports
from gpu_worker.engines.vllm.reports import STATS_KEY
from gpu_worker.engines.vllm.scheduler import TierScheduler
from gpu_worker.engines.vllm.settings import LOGGER_VARIABLE
from gpu_worker.engines.vllm.stats_endpoint import StatsEndpoint
from gpu_worker.engines.vllm.stats_logger import StatsLogger
from tests.support.vllm.model_runner import BLOCK_TOKENS, FakeModelRunner
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, base_config, configs_of, fake_time

PRIORITIES = {"priority_tiers": {"premium": -1, "standard": 0}}


@pytest.fixture(scope="module")
def base() -> Iterator[BaseConfig]:
    with base_config() as found:
        yield found


def scheduler_of(
    base: BaseConfig, settings: dict[str, Any], policy: str = "fcfs", setup: Setup | None = None
) -> TierScheduler:
    config, cache_config = configs_of(base, setup or Setup(blocks=63, batch=64, step_tokens=4096))
    config.scheduler_config.policy = policy
    config.additional_config = {"headgate": settings}
    return TierScheduler(
        vllm_config=config,
        kv_cache_config=cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=True,
    )


def request(name: str, priority: int = 0, **fields: object) -> Request:
    extra = {f"headgate_{field}": value for field, value in fields.items()}
    parameters = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, extra_args=extra)
    return Request(name, [5] * 4, parameters, None, priority=priority)


def step(scheduler: Any, runner: FakeModelRunner) -> Any:
    """Run one step, and return its report."""
    output = scheduler.schedule()
    outputs = scheduler.update_from_output(output, runner.run(output))
    stats = [each.scheduler_stats for each in outputs.values() if each.scheduler_stats is not None]
    return (stats[0].kv_connector_stats or {}).get(STATS_KEY)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"polcy": "vtc"}, "no setting 'polcy'"),
        ({"tiers": []}, "headgate.tiers should be a mapping"),
        ({"tiers": {"preemption": "no"}}, "tiers.preemption should be true or false"),
    ],
)
def test_the_engine_does_not_start_with_a_wrong_setting(
    base: BaseConfig, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        scheduler_of(base, settings)


def test_vllms_priority_policy_needs_the_operators_tiers(base: BaseConfig) -> None:
    with pytest.raises(ValueError, match="--scheduling-policy priority"):
        scheduler_of(base, {}, "priority")
    scheduler = scheduler_of(base, PRIORITIES, "priority")
    assert not isinstance(scheduler.kv_holding_waiting, PriorityRequestQueue)
    for name, priority in (("late", 9), ("usual", 0), ("urgent", -5)):
        scheduler.add_request(request(name, priority))
    tiers = [scheduler.queue_policy.tier_state(name).tier for name in ("urgent", "usual", "late")]
    assert tiers == [Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND]
    scheduler.schedule()
    assert [each.request_id for each in scheduler.running] == ["urgent", "usual", "late"]


def test_under_the_priority_policy_vllm_preempts_by_our_order(base: BaseConfig) -> None:
    """vLLM itself would preempt the highest number; here both numbers are of one tier, and the last admission goes."""
    settings = {"priority_tiers": {"premium": -1, "standard": 9}, "tiers": {"preemption": False}}
    scheduler = scheduler_of(base, settings, "priority", Setup(blocks=2, batch=4))
    runner = FakeModelRunner()
    parameters = SamplingParams(temperature=0.0, max_tokens=BLOCK_TOKENS + 2, ignore_eos=True)
    for name, priority in (("first", 9), ("second", 0)):
        scheduler.add_request(Request(name, [5] * (BLOCK_TOKENS - 2), parameters, None, priority=priority))
    while scheduler.counts.native == 0:
        step(scheduler, runner)
    assert [each.request_id for each in scheduler.running] == ["first"]


def test_a_forged_field_changes_nothing(base: BaseConfig) -> None:
    forged: dict[str, Any] = {"tenant": "other", "tier": "system", "weight": 1e9, "timeout_s": 0.0}
    for settings, tenant, tier in (({}, "unknown", Tier.STANDARD), ({"trust_client_fields": True}, "other", "system")):
        scheduler = scheduler_of(base, settings)
        scheduler.add_request(request("forged", **forged))
        state = scheduler.queue_policy.tier_state("forged")
        assert (state.request.tenant, state.tier) == (tenant, tier)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTime]:
    monkeypatch.setattr(reports, "TENANTS_IDLE_MAX", 8)
    with fake_time() as found:
        yield found


def test_the_reports_of_many_tenants_are_bounded_and_complete(base: BaseConfig, time: FakeTime) -> None:
    scheduler: Any = scheduler_of(base, {"send_stats": True, "trust_client_fields": True})
    runner, logger, sizes = FakeModelRunner(), StatsLogger(), []
    for number in range(50):
        scheduler.add_request(request(f"r{number}", tenant=f"t{number}"))
    while scheduler.has_requests():
        time.now_s += 0.02
        if (report := step(scheduler, runner)) is not None:
            sizes.append(len(report["tenants"]))
            logger.record(SchedulerStats(kv_connector_stats={STATS_KEY: report}), None)
    assert max(sizes) <= reports.TENANTS_MAX
    assert sizes.count(8) >= 3, "what is left when the engine is idle follows in steps of its own"
    stats = logger.figures[0].stats()
    assert stats is not None
    assert {name: got.output_tokens for name, got in stats.tenants.items()} == {f"t{n}": 3 for n in range(50)}
    assert stats.waiting == stats.running == 0


def test_an_idle_engine_without_stats_asks_for_no_step(base: BaseConfig, time: FakeTime) -> None:
    scheduler: Any = scheduler_of(base, {"send_stats": False, "trust_client_fields": True})
    runner = FakeModelRunner()
    for number in range(20):
        scheduler.add_request(request(f"r{number}", tenant=f"t{number}"))
    while scheduler.running or scheduler.waiting:
        assert step(scheduler, runner) is None
    for _ in range(2):
        step(scheduler, runner)
    assert not scheduler.has_requests()


def test_the_logger_takes_our_reports_out_and_leaves_those_of_a_connector(base: BaseConfig) -> None:
    assert os.environ[LOGGER_VARIABLE] == "1", "by its import"
    logger = StatsLogger()
    before = generate_latest(REGISTRY)
    stats = SchedulerStats(kv_connector_stats={"theirs": 1, STATS_KEY: {"tenants": 7}})
    logger.record(stats, None)
    assert stats.kv_connector_stats == {"theirs": 1}
    alone = SchedulerStats(kv_connector_stats={STATS_KEY: {"tenants": 7}})
    logger.record(alone, None)
    assert alone.kv_connector_stats is None
    logger.record(None, None)
    logger.record(SchedulerStats(), None)
    assert b"headgate_tenant" not in before


async def test_the_endpoint_uses_the_logger_that_vllm_loaded(base: BaseConfig) -> None:
    logger = StatsLogger()
    theirs = SimpleNamespace()
    loggers: list[Any] = [theirs, logger]
    engine = SimpleNamespace(logger_manager=SimpleNamespace(stat_loggers=loggers))
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        return None

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def answer(query: bytes) -> Any:
        await endpoint({"type": "http", "path": "/headgate/stats", "query_string": query}, None, send)
        return json.loads(sent[-1]["body"])

    endpoint = StatsEndpoint(app)
    await endpoint(
        {"type": "lifespan", "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine))}, None, send
    )
    assert loggers == [theirs, logger]
    assert await answer(b"") is None
    scheduler: Any = scheduler_of(base, {"send_stats": True, "trust_client_fields": True})
    scheduler.add_request(request("r", tenant="a"))
    runner = FakeModelRunner()
    counts, _, last = (step(scheduler, runner) for _ in range(3))
    assert counts["tenants"] == [], "a step has the counts or tenants; the last one has both"
    for report in (counts, last):
        logger.record(SchedulerStats(kv_connector_stats={STATS_KEY: report}), None)
    assert [each[1] for each in (await answer(b"since=1"))["tenants"]] == ["a"]
    assert (await answer(b"since=2"))["tenants"] == []
    assert len((await answer(b"since=nonsense"))["tenants"]) == 1
    loggers.remove(logger)
    await endpoint(
        {"type": "lifespan", "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine))}, None, send
    )
    assert isinstance(loggers[0], StatsLogger)
    assert loggers[1:] == [theirs]
