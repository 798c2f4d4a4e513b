"""Our scheduler inside a whole vLLM: steps, tokens and charges; never seconds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from gpu_worker.engines.vllm.figures import KnownFigures
from gpu_worker.engines.vllm.reports import STATS_KEY
from gpu_worker.policies.preemption import Calibration, Strategy
from tests.support.vllm.engine import BLOCK_TOKENS, SWAP_GIB, VllmDriver, vllm_driver

COPIES_ARE_FREE = Calibration(1.0, 1e12, 1e12, 0.0, 1.0, 1.0, 0.0, 0.02)
COPIES_ARE_DEAR = Calibration(1.0, 1e-3, 1e-3, 1.0, 0.0, 1e-6, 0.0, 0.02)


def prompt(tokens: int, seed: int = 0) -> list[int]:
    return [(place * 7 + seed * 13) % 500 + 5 for place in range(tokens)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_model(tmp_path_factory.mktemp("models"), TinySize())


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> dict[str, list[int]]:
    """What each request of `crowd` generates with enough blocks, under vLLM's own scheduler."""
    with vllm_driver(model, blocks=64, batch=8, scheduler=Scheduler) as driver:
        crowd(driver)
        driver.run()
        return {name: seen.tokens for name, seen in driver.seen.items()}


def crowd(driver: VllmDriver, after: int = 5) -> None:
    """Three of background fill the cache; one of premium arrives."""
    for number in range(3):
        driver.add(f"b{number}", prompt(90, number), 40, tenant="batch", tier="background")
    driver.step(after)
    driver.add("premium", prompt(150, 9), 8, tenant="paying", tier="premium")


def preemptions(driver: VllmDriver) -> dict[Strategy, int]:
    counted: dict[Strategy, int] = {}
    for (strategy, tier), count in driver.scheduler.counts.preemptions.items():
        assert tier is Tier.BACKGROUND
        counted[strategy] = counted.get(strategy, 0) + count
    return counted


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("strategy", [Strategy.RECOMPUTE, Strategy.SWAP])
def test_output_after_a_preemption_is_that_of_an_undisturbed_run(
    model: Path, undisturbed: dict[str, list[int]], strategy: Strategy, caching: bool
) -> None:
    with vllm_driver(model, swap_gib=SWAP_GIB, prefix_caching=caching) as driver:
        driver.scheduler.admission.calibration = COPIES_ARE_FREE if strategy is Strategy.SWAP else COPIES_ARE_DEAR
        crowd(driver)
        driver.run()
        assert preemptions(driver)[strategy] >= 1
        assert {name: seen.tokens for name, seen in driver.seen.items()} == undisturbed
        usage = driver.scheduler.connector.usage
        assert usage.used_bytes == 0
        if strategy is Strategy.SWAP:
            assert usage.swapped_out_bytes >= usage.swapped_in_bytes > 0


def test_premium_gets_its_first_token_in_the_step_after_it_came(model: Path) -> None:
    first = {}
    for scheduler in ("gpu_worker.engines.vllm.scheduler.TierScheduler", Scheduler):
        with vllm_driver(model, scheduler=scheduler) as driver:
            crowd(driver)
            driver.run()
            first[scheduler] = driver.seen["premium"].steps_to_first_token
    ours, stock = first.values()
    assert ours == 1
    assert stock > 30


def test_every_token_is_charged_once(model: Path) -> None:
    with vllm_driver(model, swap_gib=SWAP_GIB) as driver:
        crowd(driver)
        driver.step(3)
        driver.abort("b1")
        driver.run()
        received = driver.scheduler.queue_policy.received
        generated = {name: len(seen.tokens) for name, seen in driver.seen.items()}
        assert received["paying"].service == 150 + 2 * 8
        assert received["batch"].input_tokens == 270
        assert 0 <= received["batch"].output_tokens - (generated["b0"] + generated["b2"]) - 8 <= 2  # b1: 5 to 8 steps
        assert driver.scheduler.queue_policy.waiting == driver.scheduler.queue_policy.running == 0
        shares = driver.scheduler.queue_policy.shares
        assert shares.total == received["paying"].service + received["batch"].service


def test_a_flood_does_not_hold_up_the_quiet_tenant(model: Path) -> None:
    waited = {}
    for policy in ("tiered:fcfs", "tiered:vtc"):
        with vllm_driver(model, blocks=64, batch=2, policy=policy) as driver:
            for number in range(12):
                driver.add(f"f{number}", prompt(20, number), 12, tenant="flood")
            driver.step(4)
            driver.add("quiet", prompt(20, 99), 12, tenant="quiet")
            driver.run()
            waited[policy] = driver.seen["quiet"].steps_to_first_token
    assert waited["tiered:vtc"] <= 13  # the next of the two places
    assert waited["tiered:fcfs"] > 4 * waited["tiered:vtc"]


def test_the_reserve_is_left_to_premium(model: Path) -> None:
    with vllm_driver(model, blocks=13, batch=8, premium_reserve=0.5) as driver:
        for number in range(4):
            driver.add(f"s{number}", prompt(90, number), 6, tenant="some")
        driver.step(2)
        assert len(driver.scheduler.running) == 2  # 3 blocks each, of 6 outside the reserve
        driver.add("premium", prompt(90, 9), 6, tenant="paying", tier="premium")
        driver.step()
        assert driver.seen["premium"].first_step == driver.steps
        assert driver.scheduler.counts.preemptions.total() == 0
        driver.run()
        assert all(len(seen.tokens) == 6 for seen in driver.seen.values())


def test_a_dropped_request_gets_the_reason(model: Path) -> None:
    with vllm_driver(model, may_drop=["background"]) as driver:
        driver.scheduler.admission.calibration = Calibration(1.0, 0.0, 0.0, 0.0, 0.0, 1e-4, 0.0, 1e6)
        for number in range(3):
            driver.add(f"b{number}", prompt(90, number), 40, tenant="batch", tier="background", timeout_s=3600.0)
        driver.step(5)
        driver.add("premium", prompt(150, 9), 8, tenant="paying", tier="premium")
        driver.run()
        dropped = [seen for seen in driver.seen.values() if seen.stop_reason == "headgate:preempted"]
        assert dropped
        assert all(seen.reason == "abort" and 0 < len(seen.tokens) < 40 for seen in dropped)
        assert len(driver.tokens("premium")) == 8


def test_one_preempted_too_often_is_ended_where_that_is_set(model: Path) -> None:
    with vllm_driver(model, at_limit="end", preemptions_max=0) as driver:
        crowd(driver)
        driver.run()
        ended = [name for name, seen in driver.seen.items() if seen.stop_reason == "headgate:preempted_too_often"]
        assert ended
        assert driver.scheduler.counts.exhausted == len(ended)


def test_a_deadline_ends_what_waits_and_what_runs(model: Path) -> None:
    with vllm_driver(model, batch=1) as driver:
        driver.add("runs", prompt(20), 200, tenant="a", timeout_s=0.3)
        driver.add("waits", prompt(20, 1), 200, tenant="a", timeout_s=0.3)
        driver.step(2)
        time.sleep(0.4)
        driver.run()
        assert {seen.stop_reason for seen in driver.seen.values()} == {"headgate:expired"}
        assert driver.scheduler.counts.expired == 2


def test_a_refused_request_gets_the_reason(model: Path) -> None:
    with vllm_driver(model, policy="tiered:rpm:1") as driver:
        driver.add("first", prompt(20), 4, tenant="a")
        driver.add("second", prompt(20, 1), 4, tenant="a")
        driver.run()
        assert driver.seen["second"].stop_reason == "headgate:refused"
        assert len(driver.tokens("first")) == 4


def test_a_plain_policy_knows_no_tiers(model: Path) -> None:
    with vllm_driver(model, policy="fcfs") as driver:
        crowd(driver)
        driver.run()
        assert driver.scheduler.counts.preemptions.total() == 0
        assert driver.seen["premium"].steps_to_first_token > 30


def test_a_request_without_a_limit_is_shortened_to_its_bound_and_to_what_fits_beside_the_reserve(model: Path) -> None:
    with vllm_driver(model, blocks=13, premium_reserve=0.5) as driver:
        driver.add("bounded", prompt(20), 60, tenant="a", output_max=10, output_expected=5)
        driver.add("fits", prompt(150), 60, tenant="a", output_max=100, output_expected=5)
        driver.step()
        records = [driver.scheduler.queue_policy.record(each.request_id) for each in driver.scheduler.running]
        assert [record.request.output_tokens_max for record in records] == [5, 5]
        driver.run()
        assert (len(driver.tokens("bounded")), len(driver.tokens("fits"))) == (10, 6 * BLOCK_TOKENS - 150)


def test_a_prefix_is_shared_under_one_salt_alone_and_then_costs_a_tenth(model: Path) -> None:
    long = prompt(4 * BLOCK_TOKENS + 1)
    with vllm_driver(model, blocks=64, prefix_caching=True) as driver:
        cached = {}
        for name, tenant, salt in (("a1", "a", "salt-a"), ("a2", "a", "salt-a"), ("b1", "b", "salt-b")):
            driver.add(name, long, 2, tenant=tenant, salt=salt)
            driver.run()
            cached[name] = driver.seen[name].cached_tokens
        assert cached == {"a1": 0, "a2": 4 * BLOCK_TOKENS, "b1": 0}
        received = driver.scheduler.queue_policy.received
        assert received["b"].service == len(long) + 4
        assert received["a"].service == pytest.approx(2 * (len(long) + 4) - 0.9 * 4 * BLOCK_TOKENS)


def test_every_setting_of_the_tiers_arrives(model: Path) -> None:
    shares = {"premium": 0.2, "standard": 0.2, "background": 0.6}
    with vllm_driver(model, shares=shares, share_slack=64.0, cached_fraction=0.5, premium_reserve=0.25) as driver:
        policy = driver.scheduler.queue_policy
        assert driver.scheduler.admission.settings is policy.settings
        assert (policy.settings.share(Tier.BACKGROUND), policy.settings.premium_reserve) == (0.6, 0.25)
        policy.shares.start_waiting(Tier.BACKGROUND)
        policy.shares.charge_prompt(Tier.PREMIUM, 1000)
        assert policy.shares.behind(Tier.BACKGROUND) == 600
        assert policy.shares.is_owed(Tier.BACKGROUND)
        policy.shares.stop_waiting(Tier.BACKGROUND)
        driver.add("one", prompt(20), 2, tenant="a")
        driver.run()
        assert driver.scheduler.queue_policy._policy_of(Tier.STANDARD).cached_fraction == 0.5


def test_of_those_that_outgrow_the_cache_the_least_urgent_goes(model: Path) -> None:
    with vllm_driver(model, blocks=11, preemption=False) as driver:
        driver.add("background", prompt(120, 2), 100, tenant="b", tier="background")
        driver.step()
        driver.add("premium", prompt(120, 1), 100, tenant="a", tier="premium")
        driver.run()
        assert driver.scheduler.counts.native >= 1
        assert driver.seen["premium"].last_step == 101
        assert len(driver.tokens("background")) == 100


def test_a_charge_made_at_a_pop_is_returned_where_the_pass_skips_the_request(model: Path) -> None:
    with vllm_driver(model, batch=1) as driver:
        driver.add("runs", prompt(20), 30, tenant="a")
        driver.step(2)
        driver.add("waits", prompt(33, 1), 30, tenant="b")
        queue, policy = driver.scheduler.waiting, driver.scheduler.queue_policy
        queue.begin_pass(has_prompts=False)
        request = queue.pop_request()
        assert policy.received["b"].service == 33
        assert len(queue) == 0
        queue.prepend_request(request)
        assert policy.received["b"].service == 0
        assert len(queue) == 1
        driver.run()
        assert policy.received["b"].service == 33 + 60


def test_the_outputs_of_a_step_carry_the_stats(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those of a connector, and only if vLLM's own stats are on."""
    for name in ("REPORT_EVERY_S", "PART_EVERY_S"):
        monkeypatch.setattr(f"gpu_worker.engines.vllm.reports.{name}", 0.0)
    with vllm_driver(model, send_stats=True) as driver:
        crowd(driver)
        driver.step(2)
        figures = KnownFigures()
        for _ in range(2):  # counts and tenants take turns, also in the outputs of the steps
            driver.step(1)
            carrier = SchedulerStats(kv_connector_stats={"theirs": 1})
            driver.scheduler._reports.attach({0: EngineCoreOutputs(scheduler_stats=carrier)})
            assert carrier.kv_connector_stats is not None
            assert carrier.kv_connector_stats["theirs"] == 1
            figures.apply(json.loads(json.dumps(carrier.kv_connector_stats[STATS_KEY])))
        stats: Any = figures.stats()
        assert stats.running == len(driver.scheduler.running)
        assert stats.counts.preemptions == driver.scheduler.counts.preemptions
        assert stats.tenants["paying"].input_tokens == 150
        assert stats.gauges.tiers[Tier.PREMIUM].running == 1
        assert 0 < stats.kv_use <= 1
        driver.scheduler._reports.attach({0: EngineCoreOutputs()})
        driver.scheduler._reports.attach({})


def test_no_outputs_carry_the_stats_without_a_worker(model: Path) -> None:
    """vLLM's own loggers fail on them."""
    with vllm_driver(model) as driver:
        carrier = SchedulerStats()
        driver.scheduler._reports.attach({0: EngineCoreOutputs(scheduler_stats=carrier)})
        assert carrier.kv_connector_stats is None


def test_a_report_waits_for_its_time_but_the_last_one_does_not(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.engines.vllm.reports.REPORT_EVERY_S", 1e9)
    with vllm_driver(model, send_stats=True) as driver:
        reports = driver.scheduler._reports
        reports._sent_s = reports._ended_s

        def attached() -> bool:
            outputs = {0: EngineCoreOutputs(scheduler_stats=SchedulerStats())}
            reports.attach(outputs)
            return bool(outputs[0].scheduler_stats.kv_connector_stats)

        driver.add("one", [1, 2, 3], 3, tenant="a")
        driver.step()
        assert not attached()
        driver.run()
        assert attached()
