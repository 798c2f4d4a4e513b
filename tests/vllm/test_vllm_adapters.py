"""LoRA adapters in our scheduler inside vLLM: which tenant pays for a load, and, with a model and real adapters, what
is generated. The other tests have no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from vllm.lora.request import LoRARequest

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from gpu_worker.policies import adapters
from gpu_worker.policies.adapters import HELD_BACK_MAX
from tests.support.vllm.engine import vllm_driver
from tests.support.vllm.lora import make_adapter
from tests.support.vllm.scheduler_harness import SchedulerHarness
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, base_config, fake_time
from tests.vllm.test_vllm_alone import setup_of, storm

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


def steps_until_b_runs(harness: SchedulerHarness, most: int = 300) -> int:
    """Return how many steps a request of b with adapter 2 waits, while a keeps sending requests with adapter 1."""
    for number in range(4):
        harness.add(f"a{number}", [number] * 10, 10 + number, adapter=1, tenant="a")
    harness.step(3)
    harness.add("b", [7] * 10, 4, adapter=2, tenant="b")
    began = harness.steps
    while "b" not in harness.running and harness.steps < began + most:
        if len(harness.scheduler.requests) < 7:
            harness.add(f"later{harness.steps}", [harness.steps % 50] * 10, 12, adapter=1, tenant="a")
        harness.step()
    return harness.steps - began


@pytest.mark.parametrize("ahead", [False, True])
def test_an_adapter_gets_its_place_within_the_lead(make: Make, *, ahead: bool) -> None:
    tiers = {"adapter_load_tokens": 0, "adapter_lead": 200.0}
    harness = make(replace(with_loras(1, ahead=ahead), tiers=tiers))
    assert 5 < steps_until_b_runs(harness) < 60, "a leads b by up to 200, then its running requests end"
    endless = make(replace(with_loras(1, ahead=ahead), tiers={**tiers, "adapter_lead": 1e9}))
    assert steps_until_b_runs(endless) == 300
    for each in (harness, endless):
        each.run()
        each.check_end()


def test_a_request_without_an_adapter_passes_one_that_waits_for_its_place(make: Make) -> None:
    harness = make(replace(with_loras(1), tiers={"adapter_load_tokens": 0, "adapter_lead": 0.0}))
    harness.add("a0", [1] * 10, 20, adapter=1, tenant="a")
    harness.step()
    harness.add("b", [2] * 10, 4, adapter=2, tenant="b")
    harness.step(2)
    harness.add("a1", [3] * 10, 4, adapter=1, tenant="a")
    harness.add("p", [4] * 10, 4, tenant="p")
    harness.step()
    assert sorted(harness.running) == ["a0", "p"]
    harness.run()
    harness.check_end()


@pytest.mark.parametrize("part", range(4))
def test_storms_with_adapters(base: BaseConfig, time: FakeTime, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants of all other storms, with three adapters and places for one or two."""
    add = SchedulerHarness.add

    def add_with_adapter(harness: SchedulerHarness, name: str, *given: Any, **fields: Any) -> Any:
        return add(harness, name, *given, adapter=(None, 1, 2, 3)[crc32(name.encode()) % 4], **fields)

    monkeypatch.setattr(SchedulerHarness, "add", add_with_adapter)
    for seed in range(part * 20, part * 20 + 20):
        chance = Random(seed)
        setup = setup_of(chance)
        tiers = {**setup.tiers, "adapter_load_tokens": 0, "adapter_lead": chance.choice([0.0, 20.0, 1e9])}
        tiers["loaded_first"] = chance.random() < 0.5
        policy = setup.policy if setup.policy.startswith("tiered") else "tiered:vtc"
        setup = replace(setup, policy=policy, tiers=tiers, max_loras=chance.choice([1, 2]))
        harness = SchedulerHarness(base, setup, time)
        storm(harness, chance)
        harness.check_end()


def test_real_adapters_generate_what_each_generates_alone(tmp_path: Path) -> None:
    """vLLM loads them from their folders, one at a time, and premium evicts a batch with another adapter."""
    model = ensure_tiny_model(tmp_path, TinySize())
    loras = [
        LoRARequest(f"adapter-{number}", number, str(make_adapter(model, tmp_path / f"adapter-{number}", number)))
        for number in (1, 2, 3)
    ]
    requests = [(place, adapter) for place in range(2) for adapter in loras]
    with vllm_driver(model, blocks=16, adapters=(1, 3)) as driver:
        for place, adapter in requests:
            driver.add(f"alone{place}{adapter.lora_int_id}", [5 + place] * 20, 12, adapter=adapter)
            driver.run()
        for place, adapter in requests:
            tier = "premium" if adapter.lora_int_id == 3 else "background"
            name, tenant = f"mixed{place}{adapter.lora_int_id}", f"t{adapter.lora_int_id}"
            driver.add(name, [5 + place] * 20, 12, adapter=adapter, tenant=tenant, tier=tier)
            driver.step(2)
        driver.run()
        for place, adapter in requests:
            number = adapter.lora_int_id
            assert driver.tokens(f"mixed{place}{number}") == driver.tokens(f"alone{place}{number}")
        for place in range(2):
            assert len({tuple(driver.tokens(f"alone{place}{number}")) for number in (1, 2, 3)}) == 3, "adapters differ"
        assert driver.scheduler.counts.preemptions.total() >= 1
        received = driver.scheduler.queue_policy.received
        assert received["t3"].service > 2 * (20 + 2 * 12), "it pays for the load of its adapter"


def ask_for_adapters(harness: SchedulerHarness, count: int) -> None:
    """Add requests of one tenant that cycle through six adapters."""
    for number in range(count):
        harness.add(f"a{number:02}", [number] * 10, 4, adapter=1 + number % 6, tenant="a")


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("locality", [False, True])
def test_with_loaded_adapters_first_a_tenant_loads_less_often(make: Make, *, ahead: bool, locality: bool) -> None:
    found = {}
    for first in (False, True):
        tiers = {**SETUP.tiers, "loaded_first": first, "locality": locality}
        harness = make(replace(with_loras(1, ahead=ahead), batch=1, caching=locality, tiers=tiers))
        ask_for_adapters(harness, 24)
        harness.run()
        found[first] = loads(harness, "a")
    assert found == {False: 24, True: 6}


def test_loaded_adapters_first_changes_no_order_of_tenants(make: Make) -> None:
    harness = make(replace(with_loras(1), batch=1, tiers={**SETUP.tiers, "loaded_first": True}))
    ask_for_adapters(harness, 12)
    harness.step(3)
    harness.add("b", [7] * 10, 4, adapter=6, tenant="b")
    entered: list[str] = []
    while harness.scheduler.requests:
        harness.step()
        entered += [name for name in harness.running if name not in entered]
    assert entered.index("b") <= 2, "its tenant was served least"


def test_what_a_pass_sets_aside_is_bounded_and_nothing_starves_behind_it(make: Make) -> None:
    harness = make(replace(with_loras(1), batch=4, tiers={"adapter_load_tokens": 0}))
    harness.add("holds", [1] * 10, 50, adapter=1, tenant="a")
    harness.step()
    for number in range(300):
        harness.add(f"a{number:03}", [2] * 10, 2, adapter=2 + number % 9, tenant="a")
    harness.add("a-plain", [3] * 10, 2, tenant="a")
    seen: list[int] = []
    set_aside = harness.policy.set_aside

    def counted(name: str) -> None:
        seen[-1] += 1
        set_aside(name)

    harness.policy.set_aside = counted
    while "a-plain" not in harness.running:
        seen.append(0)
        harness.step()
    assert max(seen) == HELD_BACK_MAX
    assert len(seen) <= 300 / 11 + 2
    assert harness.running == ["holds", "a-plain"]
    assert len(harness.scheduler.waiting) == 300
    harness.run()
    harness.check_end()


@pytest.mark.parametrize("policy", ["tiered:vtc", "vtc", "fcfs"])
def test_a_tenants_own_requests_do_not_starve_one_that_waits_for_a_place(
    make: Make, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(adapters, "PASSES_MAX", 20)
    harness = make(replace(with_loras(1), policy=policy, tiers={"adapter_load_tokens": 0}))
    harness.add("a", [1] * 10, 10, adapter=1, tenant="a")
    harness.step()
    harness.add("waits", [2] * 10, 4, adapter=2, tenant="a")
    sent = 0
    while "waits" not in harness.running:
        assert sent < 60, "it starves"
        while len(harness.scheduler.requests) < 5:
            sent += 1
            harness.add(f"a{sent}", [3] * 10, 10, adapter=1, tenant="a")
        harness.step()
    assert sent > 20
    harness.run()
    harness.check_end()


def test_a_premium_request_without_an_adapter_is_not_behind_those_of_other_tiers(make: Make) -> None:
    """Also in a pass that may set aside no more."""
    harness = make(replace(with_loras(1), batch=2, tiers={"adapter_load_tokens": 0, "share_slack": 0.0}))
    harness.add("holds", [1] * 10, 50, adapter=1, tenant="a", tier="background")
    harness.step(8)
    for number in range(200):
        harness.add(f"bulk{number}", [2] * 10, 2, adapter=2 + number % 9, tenant="b", tier="background")
    harness.step()
    harness.add("gold", [3] * 10, 2, tenant="g", tier="premium")
    harness.step()
    assert "gold" in harness.running
    harness.run()
    harness.check_end()


def test_requests_that_are_held_back_can_be_aborted(make: Make) -> None:
    harness = make(replace(with_loras(1), tiers={"adapter_load_tokens": 0}))
    harness.add("holds", [1] * 10, 20, adapter=1, tenant="a")
    harness.step()
    for number in range(50):
        harness.add(f"b{number}", [2] * 10, 2, adapter=2, tenant="b")
    harness.step(2)
    for number in range(0, 50, 2):
        harness.abort(f"b{number}")
    harness.run()
    harness.check_end()
    assert harness.scheduler.waiting._held_back._aside == {}
