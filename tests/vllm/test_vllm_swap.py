"""A victim's KV is copied to host memory and back: in vLLM itself, by tokens, steps and bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
    compute_layout_strides,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import allocate_kv_cache

from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from gpu_worker.engines.vllm.swap import (
    GIB,
    BlockCopier,
    SwapConnector,
    SwapLedger,
    SwapMetadata,
    SwapUsage,
    refuse_unsupported,
)
from tests.support.vllm.engine import BLOCK_TOKENS, vllm_driver

DEVICE_BLOCKS = 12
"""One of them vLLM's null block: 11 hold at most 352 tokens."""
SIZE = TinySize()
BLOCK_BYTES = 2 * SIZE.layers * BLOCK_TOKENS * SIZE.width * 4
"""Keys and values of all layers, float32."""
PROMPTS = {"victim": 200, "rival": 230}
"""Tokens. Either fits, with its output; both do not, so the rival writes over the victim's blocks."""
OUTPUT_TOKENS = {"victim": 40, "rival": 8}
SPACE_GIB = 64 * BLOCK_BYTES / GIB


@dataclass
class Plan:
    """Orders for the scheduler under test, and what it saw."""

    evict_at_output: int | None = None
    """The victim is preempted when it has so many output tokens; None: never."""
    swap: bool = True
    swapped: list[bool] = field(default_factory=list)
    usage: list[SwapUsage] = field(default_factory=list)
    """After each step."""
    steps: list[dict[str, int]] = field(default_factory=list)
    """Tokens scheduled by request, a step each."""
    after_step: Callable[[LLM], None] = lambda llm: None
    evicted_at_step: int = -1


plan = Plan()
"""Read by the scheduler, which vLLM makes by itself."""


class EvictingScheduler(Scheduler):  # type: ignore[misc]
    """Preempts the victim at the planned token and puts it behind the rival."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        for request in list(self.running):
            if _name(request) == "victim" and request.num_output_tokens == plan.evict_at_output and not plan.swapped:
                self._evict(request)
        output = super().schedule(*args, **kwargs)
        plan.steps.append({_name(self.requests[i]): n for i, n in output.num_scheduled_tokens.items()})
        plan.usage.append(self.connector.usage)
        return output

    def _evict(self, request: Any) -> None:
        plan.evicted_at_step = len(plan.steps)
        plan.swapped.append(plan.swap and self.connector.swap_out(request))
        self.running.remove(request)
        self._preempt_request(request, 0.0)
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        self.waiting.remove_requests([request])
        self.waiting.add_request(request)


def _name(request: Any) -> str:
    return str(request.request_id).split("-")[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_model(tmp_path_factory.mktemp("models"), SIZE)


@contextmanager
def engine(model: Path, *, swap_gib: float, prefix_caching: bool) -> Iterator[LLM]:
    driver = vllm_driver(
        model, blocks=DEVICE_BLOCKS, prefix_caching=prefix_caching, swap_gib=swap_gib, scheduler=EvictingScheduler
    )
    with driver as running:
        yield running.llm


def prompt_of(name: str) -> dict[str, list[int]]:
    first = 300 if name == "victim" else 500
    return {"prompt_token_ids": [first + (i * 7) % 150 for i in range(PROMPTS[name])]}


def run(llm: LLM, wanted: Plan, names: tuple[str, ...] = ("victim", "rival")) -> dict[str, list[int]]:
    """Return the greedy output tokens by request, with an empty prefix cache at the start."""
    global plan
    plan = wanted
    llm.reset_prefix_cache()
    for name in names:
        sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS[name], ignore_eos=True)
        llm.llm_engine.add_request(name, prompt_of(name), sampling)
    tokens: dict[str, list[int]] = {}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        plan.after_step(llm)
    return tokens


def alone(llm: LLM) -> dict[str, list[int]]:
    return run(llm, Plan(), ("victim",)) | run(llm, Plan(), ("rival",))


def resumed_with(seen: Plan) -> int:
    """Return the tokens of the victim's first step after its eviction."""
    return next(step["victim"] for step in seen.steps[seen.evicted_at_step :] if "victim" in step)


def async_scheduler_like(connector: SwapConnector) -> AsyncScheduler:
    config = copy.copy(connector._vllm_config)
    config.scheduler_config = copy.copy(config.scheduler_config)
    config.scheduler_config.async_scheduling = True
    return AsyncScheduler(
        config,
        kv_cache_config=connector._kv_cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
    )


def sampled(step: Any, token: int) -> ModelRunnerOutput:
    names = list(step.num_scheduled_tokens)
    return ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, [[token] for _ in names])


def connector_of(llm: LLM) -> SwapConnector:
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    assert isinstance(connector, SwapConnector)
    return connector


@pytest.fixture(scope="module", params=[False, True], ids=["no-prefix-cache", "prefix-cache"])
def llm(model: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with engine(model, swap_gib=SPACE_GIB, prefix_caching=request.param) as made:
        yield made


@pytest.mark.parametrize("at_output", [1, 5, 25])  # 25: the 224 computed tokens fill their 7 blocks exactly
def test_victim_continues_where_it_was(llm: LLM, at_output: int) -> None:
    undisturbed = alone(llm)
    before = connector_of(llm).usage
    disturbed = run(llm, seen := Plan(evict_at_output=at_output))
    after = connector_of(llm).usage

    assert disturbed == undisturbed
    assert seen.swapped == [True]
    assert seen.steps[seen.evicted_at_step] == {"rival": PROMPTS["rival"]}, "the rival has the victim's blocks"
    assert resumed_with(seen) == 1, "nothing computed twice"
    assert max(usage.used_bytes for usage in seen.usage) == 7 * BLOCK_BYTES
    assert after.used_bytes == 0
    assert after.total_bytes == 64 * BLOCK_BYTES
    assert after.swapped_out_bytes - before.swapped_out_bytes == 7 * BLOCK_BYTES
    assert 0 < after.swapped_in_bytes - before.swapped_in_bytes <= 7 * BLOCK_BYTES


def test_without_the_copy_the_prompt_is_computed_again(llm: LLM) -> None:
    """A test of the test: `resumed_with` sees a recompute."""
    undisturbed = alone(llm)
    assert run(llm, seen := Plan(evict_at_output=5, swap=False)) == undisturbed
    assert resumed_with(seen) > BLOCK_TOKENS


def test_wrong_blocks_would_show(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test: without the copy back the tokens differ."""
    undisturbed = alone(llm)
    monkeypatch.setattr(BlockCopier, "back", lambda self, pairs: None)
    assert run(llm, seen := Plan(evict_at_output=5)) != undisturbed
    assert seen.swapped == [True]


def test_copies_larger_than_the_stage(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = alone(llm)
    copier = get_kv_transfer_group()._copier
    monkeypatch.setattr(copier, "_stage", copier._stage[:3])
    assert run(llm, seen := Plan(evict_at_output=5)) == undisturbed
    assert resumed_with(seen) == 1


def test_aborted_while_swapped_frees_its_space(llm: LLM) -> None:
    undisturbed = alone(llm)
    tokens = run(llm, seen := Plan(evict_at_output=5, after_step=abort_the_swapped))
    assert tokens["rival"] == undisturbed["rival"]
    assert seen.usage[seen.evicted_at_step].used_bytes == 7 * BLOCK_BYTES
    assert all("victim" not in step for step in seen.steps[seen.evicted_at_step :])
    assert connector_of(llm).usage.used_bytes == 0


def abort_the_swapped(llm: LLM) -> None:
    if plan.swapped:
        llm.llm_engine.abort_request(["victim"])


def test_a_reset_of_the_cache_forgets_what_is_swapped(llm: LLM) -> None:
    """As after a change of weights: the request is computed again from its first token."""

    def reset(llm: LLM) -> None:
        if len(plan.steps) == plan.evicted_at_step + 1:
            assert connector_of(llm).reset_cache()
            assert connector_of(llm).usage.used_bytes == 0

    undisturbed = alone(llm)
    assert run(llm, seen := Plan(evict_at_output=5, after_step=reset)) == undisturbed
    assert resumed_with(seen) > BLOCK_TOKENS


def test_a_pool_too_small_refuses_and_the_victim_is_recomputed(model: Path) -> None:
    with engine(model, swap_gib=6.5 * BLOCK_BYTES / GIB, prefix_caching=False) as llm:
        undisturbed = alone(llm)
        assert run(llm, seen := Plan(evict_at_output=5)) == undisturbed
        assert seen.swapped == [False]
        assert resumed_with(seen) == PROMPTS["victim"] + 5
        assert connector_of(llm).usage == SwapUsage(6 * BLOCK_BYTES, 0, 0, 0)


@pytest.mark.parametrize("drop", [False, True], ids=["delivered", "dropped"])
def test_output_in_flight_at_the_preemption_is_covered(llm: LLM, drop: bool) -> None:
    """Asynchronous scheduling, which vLLM disables on a CPU: so the scheduler runs alone, with steps answered here."""
    scheduler = async_scheduler_like(connector_of(llm))
    hasher = llm.llm_engine.engine_core.engine_core.request_block_hasher
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    scheduler.add_request(request := Request("victim", list(range(200)), sampling, None, block_hasher=hasher))
    prefill, in_flight = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(prefill, sampled(prefill, 7))
    assert (request.num_tokens, request.num_computed_tokens) == (201, 201), (
        "the last token and the next are not written yet"
    )

    assert scheduler.connector.swap_out(request)
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0, drop_stale_output=drop)
    held = scheduler.schedule()
    assert len(held.kv_connector_metadata.out) == 7, "copied in this step, whatever else is in it"
    scheduler.update_from_output(in_flight, sampled(in_flight, 8))
    resumed = held
    if not held.num_scheduled_tokens:  # output in flight is still to be delivered, or its blocks are needed
        scheduler.update_from_output(held, EMPTY_MODEL_RUNNER_OUTPUT)
        resumed = scheduler.schedule()
    assert drop or resumed is not held
    assert list(request.output_token_ids) == ([7] if drop else [7, 8])
    assert resumed.num_scheduled_tokens == {"victim": 1}
    assert resumed.has_sync_kv_loads
    assert resumed.kv_connector_metadata.back


# What needs no engine: the ledger's order, every placement vLLM knows, and what is refused.


def test_host_blocks_of_a_copy_back_are_not_given_out_in_the_same_step() -> None:
    ledger = SwapLedger(host_blocks=2, block_tokens=32, block_bytes=1)
    assert ledger.take("a", [5, 6], 64)
    ledger.drain()
    ledger.give_back("a", [7, 8], 0, 63)
    assert not ledger.take("b", [9], 1), "the copy back has not been issued yet, and copies out come first"
    assert ledger.drain() == SwapMetadata([], [(7, 0), (8, 1)])
    assert ledger.take("b", [9], 1)


def test_a_victim_out_and_back_within_a_step_takes_both_copies() -> None:
    ledger = SwapLedger(host_blocks=2, block_tokens=32, block_bytes=1)
    assert ledger.take("a", [5, 6], 64)
    ledger.give_back("a", [6, 5], 32, 63)
    assert ledger.drain() == SwapMetadata([(5, 0), (6, 1)], [(5, 1)])
    assert ledger.usage == SwapUsage(2, 0, 2, 1)


def test_nothing_computed_is_nothing_to_swap() -> None:
    assert not SwapLedger(2, 32, 1).take("a", [5], 0)


def test_forgotten_before_its_step_is_sent() -> None:
    ledger = SwapLedger(host_blocks=1, block_tokens=32, block_bytes=1)
    assert ledger.take("a", [5], 1)
    ledger.forget("a")
    ledger.forget("unknown")
    assert not ledger.drain().out
    assert ledger.usage.used_bytes == 0


@pytest.mark.parametrize("layout", list(KVCacheLayout), ids=lambda layout: layout.name)
def test_blocks_travel_whole_in_every_layout(layout: KVCacheLayout) -> None:
    """vLLM's own placement and allocation, then block 3 and 5 to the host and back as 6 and 1."""
    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
    names = ["layers.0", "layers.1", "layers.2"]
    layer_stride, block_stride, *_ = compute_layout_strides(spec, 8, len(names), layout)
    size = 8 * len(names) * spec.page_size_bytes
    placed = KVCacheTensor(size, names, layer_stride, block_stride)
    config = KVCacheConfig(8, [placed], [KVCacheGroupSpec(names, spec)])
    caches = allocate_kv_cache(config, torch.device("cpu"), layout)
    for number, cache in enumerate(caches.values()):
        cache.copy_(torch.rand(cache.shape).add(number))
    before = {name: cache.clone() for name, cache in caches.items()}

    copier = BlockCopier(caches, config, host_blocks=4)
    copier.out([(3, 0), (5, 2)])
    for cache in caches.values():
        cache[3] = cache[5] = 0
    copier.back([(6, 0), (1, 2)])

    for name, cache in caches.items():
        assert torch.equal(cache[6], before[name][3])
        assert torch.equal(cache[1], before[name][5])
        assert all(torch.equal(cache[block], before[name][block]) for block in (0, 2, 4, 7))


def test_what_cannot_be_swapped_is_refused() -> None:
    parallel = SimpleNamespace(
        pipeline_parallel_size=2, decode_context_parallel_size=1, prefill_context_parallel_size=1
    )
    spec = SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.float32, sliding_window=64)
    config = KVCacheConfig(8, [], [KVCacheGroupSpec(["layers.0"], spec)])
    with pytest.raises(ValueError, match="cannot swap SlidingWindowSpec, pipeline parallelism"):
        refuse_unsupported(SimpleNamespace(parallel_config=parallel), config)
