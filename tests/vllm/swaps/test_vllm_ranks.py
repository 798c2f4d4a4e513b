"""Tensor parallelism: two ranks of vLLM's CPU build, which are processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from tests.support.vllm.engine import SWAP_GIB, VllmDriver, vllm_driver


def crowd(driver: VllmDriver) -> dict[str, list[int]]:
    """Three of background fill the cache; one of premium arrives, and evicts."""
    for seed in range(3):
        driver.add(f"b{seed}", prompt(90, seed), 30, tenant="batch", tier="background")
    driver.step(5)
    driver.add("premium", prompt(150, 9), 8, tenant="paying", tier="premium")
    driver.run()
    return {name: seen.tokens for name, seen in driver.seen.items()}


def prompt(tokens: int, seed: int) -> list[int]:
    return [(place * 7 + seed * 13) % 500 + 5 for place in range(tokens)]


def test_two_ranks_give_the_tokens_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One scheduler for both, which evicts; each rank swaps its part of a block."""
    model = ensure_tiny_model(tmp_path, TinySize())
    with vllm_driver(model, blocks=64, batch=8, scheduler=Scheduler) as driver:
        undisturbed = crowd(driver)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    with vllm_driver(model, ranks=2, swap_gib=SWAP_GIB) as driver:
        assert crowd(driver) == undisturbed
        assert driver.seen["premium"].steps_to_first_token == 1
        usage = driver.scheduler.connector.usage
        assert usage.swapped_out_bytes >= usage.swapped_in_bytes > 0
        assert driver.scheduler.queue_policy.received["batch"].output_tokens == 90
