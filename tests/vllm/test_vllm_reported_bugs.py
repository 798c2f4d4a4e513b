"""Scenes of public bug reports about vLLM's and SGLang's schedulers (LoRA, priorities, preemption), on ours without a
model. Each test names its report; the invariants are those of the storms (scheduler_checks.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from vllm import SamplingParams
from vllm.v1.request import Request, RequestStatus

from tests.support.vllm.model_runner import FakeModelRunner
from tests.support.vllm.scheduler_harness import SchedulerHarness
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, base_config, fake_time
from tests.vllm.test_vllm_plugin import PRIORITIES, scheduler_of, step

Make = Callable[..., SchedulerHarness]
BOTH = pytest.mark.parametrize("ahead", [False, True])
FREE_LOADS = {"adapter_load_tokens": 0}


@pytest.fixture(scope="module")
def base() -> Iterator[BaseConfig]:
    with base_config() as found:
        yield found


@pytest.fixture
def make(base: BaseConfig) -> Iterator[Make]:
    def make(**fields: object) -> SchedulerHarness:
        return SchedulerHarness(base, Setup(**{"blocks": 200, "batch": 32, "step_tokens": 512, **fields}), time)  # type: ignore[arg-type]

    time: FakeTime
    with fake_time() as time:
        yield make


def finish(harness: SchedulerHarness) -> None:
    harness.finish()
    assert all(sent.tokens == sent.expected for sent in harness.sent.values())


@BOTH
def test_requests_behind_those_without_a_place_enter_in_the_same_step(make: Make, ahead: bool) -> None:
    """vllm-project/vllm 15422: the queue of its description."""
    harness = make(ahead=ahead, max_loras=4, tiers=FREE_LOADS)
    adapters = (0, 0, 0, 1, 3, 2, 4, 5, 5, 5, 5, 0, 0, 1, 2, 3)
    for number, adapter in enumerate(adapters, 1):
        harness.add(f"R{number}", [number] * 4, 6, adapter=adapter or None)
    harness.step()
    assert sorted(harness.running) == sorted(f"R{n}" for n, each in enumerate(adapters, 1) if each != 5)
    finish(harness)


@BOTH
def test_as_many_adapters_as_places_and_the_model_itself_run_in_one_step(make: Make, ahead: bool) -> None:
    """sgl-project/sglang 23141: the request without an adapter was counted as one more."""
    harness = make(ahead=ahead, max_loras=2, tiers=FREE_LOADS)
    for number, adapter in enumerate((None, 1, 2, None, 3)):
        harness.add(f"r{number}", [number] * 4, 6, adapter=adapter)
    harness.step()
    assert sorted(harness.running) == ["r0", "r1", "r2", "r3"]
    finish(harness)


@pytest.mark.parametrize("loaded_first", [False, True])
def test_an_adapter_is_not_starved_by_requests_with_a_loaded_one(make: Make, loaded_first: bool) -> None:
    """vllm-project/vllm 16876, sgl-project/sglang 15129: A, B, A, A, A and so on with one place, all of one tenant."""
    harness = make(max_loras=1, batch=4, tiers={**FREE_LOADS, "loaded_first": loaded_first})
    harness.add("A", [1] * 4, 4, adapter=1)
    harness.add("B", [2] * 4, 4, adapter=2)
    sent = 0
    while "B" not in harness.running:
        assert harness.steps < 1000, "B starves"
        while len(harness.scheduler.requests) < 9:
            sent += 1
            harness.add(f"A{sent}", [3] * 4, 4, adapter=1)
        harness.step()
    assert sent <= 256 + 64 + 8
    finish(harness)


def test_two_adapters_of_one_name_are_two(make: Make) -> None:
    """NovaSky-AI/SkyRL 1606: a server that loads an adapter again gives it another number."""
    harness = make(max_loras=1, tiers=FREE_LOADS)
    for number in (1, 2):
        harness.add(f"r{number}", [number] * 4, 6, adapter=number)
        harness.scheduler.requests[f"r{number}"].lora_request.lora_name = "same"
    harness.step()
    assert harness.running == ["r1"]
    finish(harness)


@BOTH
def test_more_deferred_requests_than_places_in_the_batch_stop_no_other(make: Make, ahead: bool) -> None:
    """vllm-project/vllm 53130: running and deferred requests together reached max_num_seqs, and none was admitted."""
    harness = make(ahead=ahead, batch=4)
    for number in range(12):
        harness.add(f"g{number}", [number] * 4, 3, grammar=True)
    harness.step(3)
    for number in range(6):
        harness.add(f"p{number}", [number] * 4, 3)
    harness.step()
    assert len(harness.running) == 4
    for number in range(12):
        harness.compile(f"g{number}")
    finish(harness)


@BOTH
def test_waiting_grammars_cost_no_admission(make: Make, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step admitted each request without a compiled grammar and undid it: 150 ms with 5,000, and vLLM's own 16."""
    harness = make(ahead=ahead, batch=4)
    harness.add("plain", [1] * 4, 12, tenant="a")
    for number in range(50):
        harness.add(f"g{number}", [2] * 4, 3, grammar=True, tenant="b")
    harness.step()
    admitted: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(harness.policy, "admit", admitted.append)
        harness.step(3)
    assert (harness.running, admitted) == (["plain"], [])
    harness.abort("g0")
    harness.compile("g1", broken=True)
    for number in range(2, 50):
        harness.compile(f"g{number}")
    harness.finish()
    assert harness.sent["g1"].ends == [("error", None)]
    assert all(sent.tokens == sent.expected for name, sent in harness.sent.items() if name not in ("g0", "g1"))


@BOTH
def test_an_engine_that_only_compiles_grammars_goes_on(make: Make, ahead: bool) -> None:
    harness = make(ahead=ahead, batch=4)
    for number in range(3):
        harness.add(f"g{number}", [number] * 4, 3, grammar=True)
    harness.step(3)
    assert harness.running == []
    harness.abort("g0")
    harness.step()
    for number in (1, 2):
        harness.compile(f"g{number}")
    harness.step()
    assert sorted(harness.running) == ["g1", "g2"]
    harness.finish()
    assert all(harness.sent[name].tokens == harness.sent[name].expected for name in ("g1", "g2"))


def test_children_of_one_request_have_one_priority_and_one_arrival(base: BaseConfig) -> None:
    """vllm-project/vllm 29747: with n > 1 the priority queue compared two requests that are equal, and ended."""
    scheduler, runner = scheduler_of(base, PRIORITIES, "priority"), FakeModelRunner()
    parameters = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    for priority in (0, -7, 7):
        for child in range(3):
            name = f"{child}_request{priority}"
            scheduler.add_request(Request(name, [5] * 4, parameters, None, priority=priority, arrival_time=1.0))
    while scheduler.has_requests():
        step(scheduler, runner)
    assert not scheduler.requests


@BOTH
@pytest.mark.parametrize("swap_blocks", [None, 20])
def test_a_flood_is_preempted_for_urgent_requests_and_ends(make: Make, ahead: bool, swap_blocks: int | None) -> None:
    """vllm-project/vllm 9272, 9342: fifteen requests, then some with priority -100, ended the server."""
    harness = make(ahead=ahead, blocks=40, batch=10, swap_blocks=swap_blocks)
    for number in range(15):
        harness.add(f"usual{number}", [number] * 8, 12, tier="background")
    harness.step(3)
    for number in range(5):
        harness.add(f"urgent{number}", [20 + number] * 8, 6, tier="premium", tenant="urgent")
        harness.step()
        assert f"urgent{number}" in harness.running
    finish(harness)


@BOTH
def test_requests_that_outgrow_the_cache_together_end(make: Make, ahead: bool) -> None:
    """vllm-project/vllm 23347: a request that the step had counted already was preempted in the same step."""
    harness = make(ahead=ahead, blocks=13, batch=6)
    for number in range(6):
        harness.add(f"r{number}", [number] * 7, 14, tenant=f"t{number % 2}")
    finish(harness)
    assert harness.seen["native"] > 0


def test_a_preempted_request_returns_before_later_ones(make: Make) -> None:
    """vllm-project/vllm 41951: a request that was preempted waited behind others that had never run."""
    harness = make(blocks=8, batch=2)
    for name in ("first", "second", "third", "fourth"):
        harness.add(name, [ord(name[0])] * 8, 12)
    entered: list[str] = []
    while harness.scheduler.requests:
        before = harness.running
        harness.step()
        entered += [name for name in harness.running if name not in before]
    assert harness.seen["native"] > 0
    again = entered.index("second", entered.index("second") + 1)
    assert again < entered.index("third")
    assert all(sent.tokens == sent.expected for sent in harness.sent.values())


@BOTH
def test_a_long_prompt_is_not_resumed_and_preempted_in_turns(make: Make, ahead: bool) -> None:
    """vllm-project/vllm 25538: the first chunk of a long prompt found room, and the next one did not."""
    harness = make(ahead=ahead, blocks=16, batch=4, step_tokens=16)
    harness.add("long", [1] * 40, 4, tenant="a")
    harness.add("runs", [2] * 16, 30, tenant="b")
    harness.add("also", [3] * 16, 30, tenant="c")
    finish(harness)
    assert harness.seen["native"] <= 6


def test_a_request_aborted_between_its_preemption_and_its_return_leaves_nothing(make: Make) -> None:
    """tenstorrent/vllm 145: an abort of a request that was missing from the batch."""
    harness = make(blocks=12, batch=4)
    for number in range(3):
        harness.add(f"bulk{number}", [number] * 8, 8, tier="background")
    harness.step(2)
    harness.add("urgent", [9] * 40, 4, tier="premium")
    harness.step()
    waiting = [name for name in harness.scheduler.requests if name not in harness.running]
    assert waiting
    harness.scheduler.finish_requests(["never-sent"], RequestStatus.FINISHED_ABORTED)
    harness.abort(*waiting)
    harness.finish()


@BOTH
def test_with_a_clock_that_stands_still_all_requests_end(
    base: BaseConfig, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTime, "perf_counter", lambda clock: clock.now_s)
    with fake_time() as time:
        harness = SchedulerHarness(base, Setup(ahead=ahead, blocks=12, batch=4, tiers={"lead_max": 20.0}), time)
        for number in range(12):
            tier = ("premium", "standard", "background")[number % 3]
            harness.add(f"r{number}", [number] * 8, 8, tier=tier, tenant=f"t{number % 4}", timeout_s=5.0)
            harness.step()
        harness.run()
        assert all(sent.tokens == sent.expected for sent in harness.sent.values())
