"""The invariants of our scheduler in vLLM, checked from outside: blocks, lists, swap, evictions, charges, leftovers."""

from __future__ import annotations

from collections import Counter, deque
from math import ceil
from typing import TYPE_CHECKING, Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.protocol import ENDED_PREFIX
from gpu_worker.policies.admission import RESERVED_FOR, AdmissionPlan
from gpu_worker.policies.preemption import Eviction
from vllm.v1.request import Request

if TYPE_CHECKING:
    from tests.support.vllm.scheduler_harness import SchedulerHarness, SentRequest

_KEPT_BY_DESIGN = {"_tiers", "_evictable", "_began"}
"""A policy for each tier; counts that are 0 again; the step that `check_end` schedules and never runs."""


def check_step(harness: SchedulerHarness) -> None:
    _check_blocks(harness)
    _check_lists(harness)
    _check_swap(harness)


def _check_blocks(harness: SchedulerHarness) -> None:
    manager = harness.scheduler.kv_cache_manager
    held: set[int] = set()
    for name in harness.scheduler.requests:
        (blocks,) = manager.get_block_ids(name)
        assert not blocks or name in harness.running, f"{name} waits and holds blocks"
        assert len(set(blocks)) == len(blocks)
        assert harness.setup.caching or not held & set(blocks), "two requests hold one block"
        held |= set(blocks)
    deferred = sum(len(blocks) for _, blocks in harness.scheduler.deferred_frees)
    assert manager.block_pool.get_num_free_blocks() + len(held) + deferred == harness.setup.blocks
    (single,) = manager.coordinator.single_type_managers
    assert set(single.req_to_blocks) <= set(harness.running)


def _check_lists(harness: SchedulerHarness) -> None:
    scheduler, policy = harness.scheduler, harness.policy
    running, waiting = harness.running, [request.request_id for request in scheduler.waiting]
    assert len(set(running)) == len(running)
    assert not set(running) & set(waiting)
    assert set(running) | set(waiting) == set(scheduler.requests)
    assert not len(scheduler.kv_holding_waiting)
    assert all(policy.is_running(name) for name in running)
    assert not any(policy.is_running(name) for name in waiting)
    assert len(scheduler.waiting) == len(waiting) == policy.waiting
    assert len(running) == policy.running <= harness.setup.batch
    for tier in Tier:
        assert policy.waiting_in(tier) == sum(policy.tier_state(name).tier is tier for name in waiting)
    assert scheduler.deferred_waiting <= set(scheduler.waiting)


def _check_swap(harness: SchedulerHarness) -> None:
    if harness.scheduler.connector is None:
        return
    ledger = harness.scheduler.connector.ledger
    waiting = {request.request_id for request in harness.scheduler.waiting}
    assert set(ledger.held) <= waiting, "swapped out, but not waiting"
    used = [block for _, blocks in ledger.held.values() for block in blocks]
    assert len(set(used)) == len(used)
    assert ledger.usage.used_bytes == len(used) * ledger.block_bytes


def check_eviction(harness: SchedulerHarness, plan: AdmissionPlan, eviction: Eviction) -> None:
    settings, resident, head = harness.policy.settings, eviction.resident, plan.request
    assert eviction in plan.evictions
    assert resident.request_id in harness.running
    assert head.request_id not in harness.running
    assert resident.tier.rank > head.tier.rank or (resident.tier is head.tier and settings.lead_max < float("inf")), (
        f"{resident.tier} was evicted for {head.tier}"
    )
    assert not harness.policy.tier_state(resident.request_id).protected(settings)


def check_reserve(harness: SchedulerHarness, request: Request) -> None:
    """Check a request that was popped: admitted beside the reserve, or about to be skipped and without blocks."""
    manager, settings, policy = harness.scheduler.kv_cache_manager, harness.policy.settings, harness.policy
    (held,) = manager.get_block_ids(request.request_id)
    if not held or not settings.premium_reserve or policy.tier_state(request.request_id).tier in RESERVED_FOR:
        return
    used = 0
    for running in harness.scheduler.running:
        if policy.tier_state(running.request_id).tier in RESERVED_FOR:
            blocks = manager.get_blocks(running.request_id).blocks[0]
            used += sum(block.ref_cnt - (block.block_id in held) == 1 for block in blocks)
    reserve = ceil(settings.premium_reserve * harness.setup.blocks)
    assert manager.block_pool.get_num_free_blocks() >= reserve - used, "it took reserved blocks"


def check_end(harness: SchedulerHarness) -> None:
    for sent in harness.sent.values():
        _check_outcome(harness, sent)
    _check_charges(harness)
    _check_nothing_left(harness)


def _check_outcome(harness: SchedulerHarness, sent: SentRequest) -> None:
    assert sent.tokens == harness.expected_so_far(sent.name)
    if sent.aborted:
        assert not sent.ends, "its client was gone"
        return
    ((reason, stop),) = sent.ends
    if reason in ("stop", "length"):
        assert sent.tokens == sent.expected
    elif reason == "error":
        assert sent.name in harness.broken_grammars
        assert not sent.tokens
    else:
        assert reason == "abort"
        assert str(stop).startswith(ENDED_PREFIX)


def _charged_prompt(harness: SchedulerHarness, sent: SentRequest) -> int:
    """Return the prompt tokens to charge: of a request that ended while it computed its prompt those that it had."""
    if sent.name not in harness.ended_in_prefill:
        return len(sent.prompt)
    assert not sent.tokens
    return harness.model_runner.computed.get(sent.name, 0)


def _check_charges(harness: SchedulerHarness) -> None:
    inputs: Counter[str] = Counter()
    outputs: Counter[str] = Counter()
    cached: Counter[str] = Counter()
    first_computed = harness.model_runner.first_computed
    for sent in harness.sent.values():
        outputs[sent.tenant] += len(sent.tokens)
        if sent.name in first_computed:
            inputs[sent.tenant] += _charged_prompt(harness, sent)
            cached[sent.tenant] += first_computed[sent.name]
    received = harness.policy.received
    assert {name: got.input_tokens for name, got in received.items()} == {k: v for k, v in inputs.items() if v}
    assert {name: got.output_tokens for name, got in received.items()} == {k: outputs[k] for k in received}
    for name, got in received.items():
        assert abs(got.service - (inputs[name] - 0.9 * cached[name] + 2 * outputs[name])) < 1e-6
    assert abs(harness.policy.shares.total - inputs.total() - 2 * outputs.total()) < 1e-6
    _check_reports(harness)


def _check_reports(harness: SchedulerHarness) -> None:
    """Check that what was reported is what was counted, and that nothing is left to report."""
    assert not any(policy.changes for policy in harness.policy.by_tier.values())
    stats, received = harness.known.stats(), harness.policy.received
    reported = {} if stats is None else {name: got for name, got in stats.tenants.items() if name in received}
    assert reported.keys() == received.keys()
    for name, got in received.items():
        shown = reported[name]
        assert (shown.input_tokens, shown.output_tokens) == (got.input_tokens, got.output_tokens)
        assert abs(shown.service - got.service) < 1e-6


def _check_nothing_left(harness: SchedulerHarness) -> None:
    scheduler, policy, manager = harness.scheduler, harness.policy, harness.scheduler.kv_cache_manager
    assert manager.block_pool.get_num_free_blocks() == harness.setup.blocks
    assert not scheduler.requests
    assert policy.waiting == policy.running == 0
    reports = scheduler._reports
    for holder in (policy, scheduler.admission, scheduler.waiting, reports, reports._cost_tracker):
        _check_empty(holder)
    for inner in policy._tiers.values():
        for kept in (inner._waiting, inner._running, inner._queues, inner._received._present):
            assert not kept
    assert not scheduler._unsent
    assert not scheduler._discarding
    assert scheduler.waiting._head is None


def _check_empty(holder: Any) -> None:
    for name, value in vars(holder).items():
        if isinstance(value, Counter):
            assert not any(value.values()), name
        elif isinstance(value, dict | set | list | deque) and name not in _KEPT_BY_DESIGN:
            assert not value, f"{type(holder).__name__}.{name} keeps {value}"
