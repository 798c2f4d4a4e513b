"""Other KV connectors of vLLM with our scheduler, two engines, and drafts: in vLLM itself, by tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats

from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from gpu_worker.engines.vllm.figures import KnownFigures
from gpu_worker.engines.vllm.reports import STATS_KEY
from gpu_worker.policies.preemption import Strategy
from tests.support.vllm.engine import SWAP_GIB, VllmDriver, swap_transfer, vllm_driver
from tests.support.vllm.file_connector import files_transfer

PROMPT_TOKENS = {"b0": 90, "b1": 90, "b2": 90, "premium": 150}
OUTPUT_TOKENS = {"b0": 30, "b1": 30, "b2": 30, "premium": 8}


def add(driver: VllmDriver, name: str, output: int) -> None:
    start = ord(name[-1])
    prompt = [(place * 7 + start * 13) % 500 + 5 for place in range(PROMPT_TOKENS[name])]
    tier = "premium" if name == "premium" else "background"
    driver.add(name, prompt, output, tenant=name[0], tier=tier)


def crowd(driver: VllmDriver) -> dict[str, list[int]]:
    """Three of background fill the cache; one of premium arrives, and evicts."""
    for name, output in OUTPUT_TOKENS.items():
        if name == "premium":
            driver.step(4)
        add(driver, name, output)
    driver.run()
    return {name: driver.tokens(name) for name in OUTPUT_TOKENS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_model(tmp_path_factory.mktemp("models"), TinySize())


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> dict[str, list[int]]:
    with vllm_driver(model, blocks=64, batch=8, scheduler=Scheduler) as driver:
        return crowd(driver)


def strategies(driver: VllmDriver) -> set[Strategy]:
    return {strategy for strategy, _ in driver.scheduler.counts.preemptions}


def test_a_victim_is_swapped_beside_another_connector(
    model: Path, undisturbed: dict[str, list[int]], tmp_path: Path
) -> None:
    """Though output in flight is dropped for the other one. Statistics are reported beside the connectors' own."""
    connectors = [swap_transfer(SWAP_GIB), files_transfer(tmp_path, "kv_both")]
    transfer = KVTransferConfig(
        kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config={"connectors": connectors}
    )
    with vllm_driver(model, transfer=transfer, send_stats=True) as driver:
        scheduler, known = driver.scheduler, KnownFigures()
        assert scheduler.requires_kv_delivery
        scheduler.admission.calibration = replace(
            scheduler.admission.calibration, copy_out_bytes_per_s=1e12, copy_in_bytes_per_s=1e12, copy_base_s=0.0
        )
        assert crowd(driver) == undisturbed
        assert Strategy.SWAP in strategies(driver)
        swap = scheduler.connector.sub_connectors[0].usage
        assert swap.swapped_out_bytes >= swap.swapped_in_bytes > 0
        assert swap.used_bytes == 0
        carrier = SchedulerStats(kv_connector_stats={"FileConnector": 1})
        scheduler._reports.attach({0: EngineCoreOutputs(scheduler_stats=carrier)})
        assert carrier.kv_connector_stats is not None
        known.apply(carrier.kv_connector_stats.pop(STATS_KEY))
        assert carrier.kv_connector_stats == {"FileConnector": 1}
        assert (stats := known.stats()) is not None
        assert stats.tenants["p"].output_tokens == OUTPUT_TOKENS["premium"]
        assert stats.gauges.swap_bytes_total == swap.total_bytes
    assert list(tmp_path.iterdir()), "the other connector saved the prompts"


def test_a_request_whose_prompt_another_engine_computed_is_evicted_and_goes_on(
    model: Path, undisturbed: dict[str, list[int]], tmp_path: Path
) -> None:
    with vllm_driver(model, transfer=KVTransferConfig(**files_transfer(tmp_path, "kv_producer"))) as driver:
        for name in OUTPUT_TOKENS:
            add(driver, name, 1)
        driver.run()
        assert all(driver.tokens(name) == tokens[:1] for name, tokens in undisturbed.items())
    with vllm_driver(model, transfer=KVTransferConfig(**files_transfer(tmp_path, "kv_consumer"))) as driver:
        assert crowd(driver) == undisturbed
        assert strategies(driver) == {Strategy.RECOMPUTE}
        assert driver.seen["premium"].steps_to_first_token == 1
        assert driver.scheduler.queue_policy.received["p"].service < 150, "loaded tokens cost a tenth"


def count_accepted(driver: VllmDriver) -> list[int]:
    """Return a list that gets the number of accepted drafts of each following step."""
    accepted: list[int] = []
    update = driver.scheduler.update_from_output

    def counted_update(output: Any, results: Any) -> Any:
        accepted.append(sum(max(0, len(tokens) - 1) for tokens in results.sampled_token_ids))
        return update(output, results)

    driver.scheduler.update_from_output = counted_update
    return accepted


def test_drafts_change_no_token_and_are_charged_once(model: Path, undisturbed: dict[str, list[int]]) -> None:
    """With n-gram drafts, some accepted and most rejected, and with a victim that is swapped."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    with vllm_driver(model, speculative=drafts, swap_gib=SWAP_GIB) as driver:
        accepted = count_accepted(driver)
        assert crowd(driver) == undisturbed
        assert sum(accepted) > 0
        assert driver.scheduler.counts.preemptions.total() >= 1
        received = driver.scheduler.queue_policy.received
        assert (received["b"].output_tokens, received["p"].output_tokens) == (90, 8)
