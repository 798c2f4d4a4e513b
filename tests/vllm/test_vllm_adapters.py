"""LoRA adapters in our scheduler inside vLLM, without a model: which tenant pays for a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from dispatcher.policies.tiers import Tier
from tests.support.vllm.scheduler_harness import SchedulerHarness
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, base_config, fake_time

LOAD = 100
SETUP = Setup(blocks=64, batch=4, step_tokens=256, tiers={"adapter_load_tokens": LOAD})
Make = Callable[[Setup], SchedulerHarness]


@pytest.fixture(scope="module")
def base() -> Iterator[BaseConfig]:
    with base_config() as found:
        yield found


@pytest.fixture
def time() -> Iterator[FakeTime]:
    with fake_time() as found:
        yield found


@pytest.fixture
def make(base: BaseConfig, time: FakeTime) -> Make:
    return lambda setup: SchedulerHarness(base, setup, time)


def with_loras(most: int, *, ahead: bool = False) -> Setup:
    return replace(SETUP, max_loras=most, ahead=ahead)


def loads(harness: SchedulerHarness, tenant: str) -> float:
    """Return what a tenant paid beyond its tokens, in loads."""
    received = harness.policy.received[tenant]
    return float(received.service - received.input_tokens - 2 * received.output_tokens) / LOAD


@pytest.mark.parametrize("ahead", [False, True])
def test_a_load_is_charged_to_the_tenant_that_causes_it(make: Make, *, ahead: bool) -> None:
    harness = make(with_loras(1, ahead=ahead))
    harness.add("a1", [1] * 10, 4, adapter=1, tenant="a")
    harness.add("a2", [2] * 10, 4, adapter=1, tenant="a")
    harness.add("plain", [3] * 10, 4, tenant="p")
    harness.run()
    assert (loads(harness, "a"), loads(harness, "p")) == (1, 0)
    harness.add("b1", [4] * 10, 4, adapter=2, tenant="b")
    harness.run()
    harness.add("a3", [5] * 10, 4, adapter=1, tenant="a")
    harness.run()
    assert (loads(harness, "a"), loads(harness, "b")) == (2, 1)


def test_with_room_for_both_each_is_loaded_once(make: Make) -> None:
    harness = make(with_loras(2))
    for number in range(3):
        for adapter, tenant in ((1, "a"), (2, "b")):
            harness.add(f"{tenant}{number}", [number] * 10, 4, adapter=adapter, tenant=tenant)
        harness.run()
    assert (loads(harness, "a"), loads(harness, "b")) == (1, 1)


def test_a_request_that_vllm_skips_loads_nothing(make: Make) -> None:
    """Its adapter has no place beside the one that runs."""
    harness = make(with_loras(1))
    harness.add("a", [1] * 10, 20, adapter=1, tenant="a")
    harness.step()
    harness.add("b", [2] * 10, 4, adapter=2, tenant="b")
    harness.step(5)
    assert harness.running == ["a"]
    assert loads(harness, "b") == 0
    harness.run()
    assert (loads(harness, "a"), loads(harness, "b")) == (1, 1)


def test_a_tenant_that_was_evicted_for_an_adapter_does_not_pay_to_come_back(make: Make) -> None:
    harness = make(with_loras(1))
    harness.add("bulk", [1] * 10, 20, adapter=1, tenant="bulk", tier=Tier.BACKGROUND.value)
    harness.step(3)
    harness.add("gold", [2] * 10, 4, adapter=2, tenant="gold", tier=Tier.PREMIUM.value)
    harness.step(2)
    assert harness.running == ["gold"]
    harness.run()
    assert (loads(harness, "bulk"), loads(harness, "gold")) == (1, 1)


def test_without_lora_nothing_is_counted(make: Make) -> None:
    harness = make(SETUP)
    assert harness.scheduler.waiting._adapters is None
