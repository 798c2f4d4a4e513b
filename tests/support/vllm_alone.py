"""Our schedulers inside vLLM without a model: made from a real configuration, their steps answered at once, so that a
whole schedule takes milliseconds. Imports vLLM: for tests/vllm only.

What answers is a worker as far as a scheduler can tell: it knows of a request only what the steps say, keeps for each
slot of each KV block which tokens it was computed from, makes the swap's copies, and refuses to go on from a slot that
holds something else. The token at each position is a function of the request's id and the position, so what everybody
must have in the end is known beforehand.
"""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.vllm_engine import vllm_driver  # before vLLM: it sets what vLLM reads when it is imported  # isort: skip

from pytest import MonkeyPatch  # noqa: PT013
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.measured.copy_rates import measure_copy_rates
from gpu_worker.engines.models.tiny import TinySize, ensure_tiny_model
from gpu_worker.engines.vllm import reports as vllm_reports
from gpu_worker.engines.vllm import scheduler as vllm_scheduler
from gpu_worker.engines.vllm.scheduler import ENDED, AsyncTierScheduler, TierScheduler
from gpu_worker.policies.preemption.admission import RESERVED_FOR, AdmissionPlan
from gpu_worker.policies.preemption.costs import Eviction

BLOCK_TOKENS = 4
CONTEXT_TOKENS = 64
STEPS_MAX = 1500


@dataclass(frozen=True)
class Configured:
    """What vLLM made of a tiny model: nothing of it is made up."""

    config: Any
    cache: Any


@contextmanager
def configured() -> Iterator[Configured]:
    model = ensure_tiny_model(Path(tempfile.mkdtemp()), TinySize())
    with vllm_driver(model, blocks=64, scheduler=Scheduler) as driver:
        yield Configured(driver.scheduler.vllm_config, driver.scheduler.kv_cache_config)


class Clock:
    """In place of the `time` that our scheduler and its reports read."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._looks = 0

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        """Something passes between any two looks at it."""
        self._looks += 1
        return self.now_s + 1e-3 * self._looks


class AnyGrammar:
    """Compiled, and content with every token."""

    def accept_tokens(self, name: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


@dataclass(frozen=True)
class Setup:
    """`ahead`: a step is scheduled before the results of the one before it are there. `blocks`: that may be used.
    `swap_blocks`: of the host; None runs without the connector. `v2`: as for vLLM's newer model runner."""

    ahead: bool = False
    blocks: int = 16
    batch: int = 4
    step_tokens: int = 64
    caching: bool = False
    swap_blocks: int | None = None
    v2: bool = False
    policy: str = "tiered:vtc"
    tiers: Mapping[str, object] = field(default_factory=dict)


def token(name: str, position: int) -> int:
    return zlib.crc32(f"{name} {position}".encode()) % 1_000_003


@dataclass
class Asked:
    """One request, and what became of it."""

    name: str
    tenant: str
    tier: Tier
    prompt: list[int]
    expected: list[int]
    tokens: list[int] = field(default_factory=list)
    ends: list[tuple[str, str | None]] = field(default_factory=list)
    """(finish reason, stop reason) of each output that said that it is over."""
    aborted: bool = False


class Worker:
    """Steps in, tokens out."""

    def __init__(self) -> None:
        self.first_computed: dict[str, int] = {}
        """By request: prompt tokens that its first step found computed."""
        self._tokens: dict[str, list[int]] = {}
        self._chains: dict[str, list[int]] = {}
        self._blocks: dict[str, list[int]] = {}
        self._memory: dict[int, list[int]] = {}
        self._host: dict[int, list[int]] = {}
        self._before: set[str] = set()

    def run(self, output: Any) -> ModelRunnerOutput:
        self._learn(output)
        meta = output.kv_connector_metadata
        if meta is not None:
            for device, host in meta.out:
                self._host[host] = list(self._block(device))
            for device, host in meta.back:
                self._memory[device] = list(self._host[host])
        names = list(output.num_scheduled_tokens)
        computed = self._computed(output)
        sampled = [self._compute(name, computed[name], output.num_scheduled_tokens[name]) for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _learn(self, output: Any) -> None:
        for name in output.finished_req_ids:
            for known in (self._tokens, self._chains, self._blocks):
                known.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.first_computed.setdefault(new.req_id, new.num_computed_tokens)
            self._is(new.req_id, new.prefill_token_ids or new.prompt_token_ids, new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                assert name in output.preempted_req_ids or name not in self._before, "resumed, but it runs"
                self._is(name, cached.all_token_ids[name], blocks[0])
            elif blocks is not None:
                self._blocks[name] += blocks[0]
        self._before = set(output.num_scheduled_tokens)

    def _is(self, name: str, tokens: list[int], blocks: list[int]) -> None:
        self._tokens[name], self._blocks[name] = list(tokens), list(blocks)
        chain = self._chains[name] = []
        for one in tokens:
            chain.append(hash((chain[-1] if chain else 0, one)))

    def _computed(self, output: Any) -> dict[str, int]:
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        return computed | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))

    def _compute(self, name: str, before: int, tokens: int) -> list[int]:
        known, chain, blocks = self._tokens[name], self._chains[name], self._blocks[name]
        assert 0 < tokens <= len(known) - before, "a step beyond the tokens that there are"
        assert before + tokens <= len(blocks) * BLOCK_TOKENS, "a step beyond its blocks"
        for start in range(0, before, BLOCK_TOKENS):
            end = min(before, start + BLOCK_TOKENS)
            held = self._block(blocks[start // BLOCK_TOKENS])[: end - start]
            assert held == chain[start:end], f"{name} goes on from what is not its own, at {start}"
        for position in range(before, before + tokens):
            self._block(blocks[position // BLOCK_TOKENS])[position % BLOCK_TOKENS] = chain[position]
        if before + tokens < len(known):
            return []
        known.append(token(name, len(known)))
        chain.append(hash((chain[-1], known[-1])))
        return [known[-1]]

    def _block(self, block: int) -> list[int]:
        return self._memory.setdefault(block, [0] * BLOCK_TOKENS)


class Alone:
    """One scheduler, driven as vLLM's core drives it, and looked at after each half of a step."""

    def __init__(self, made: Configured, setup: Setup, clock: Clock) -> None:
        self.setup, self.clock = setup, clock
        self.config, cache_config = _as_set_up(made, setup)
        kind = AsyncTierScheduler if setup.ahead else TierScheduler
        self.scheduler: Any = kind(
            vllm_config=self.config,
            kv_cache_config=cache_config,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK_TOKENS,
        )
        self.scheduler.use_v2_model_runner = setup.v2
        self.worker = Worker()
        self.asked: dict[str, Asked] = {}
        self.under_way: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.steps = 0
        self.evicted: list[tuple[AdmissionPlan, Eviction]] = []
        """By our passes, of the schedule that was made last."""
        self.in_vain = 0
        """Evictions for a request that was not let in thereupon, though vLLM evicted nobody by itself."""
        self.seen: Counter[str] = Counter()
        self.broken_grammars: set[str] = set()
        self._hash = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(self._hash)
        self._watch()

    @property
    def policy(self) -> Any:
        return self.scheduler.policy

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    def ask(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int,
        *,
        stop_after: int | None = None,
        grammar: bool = False,
        resumable: bool = False,
        **said: object,
    ) -> Asked:
        """`stop_after`: so many tokens, as nobody knows beforehand. `said`: what the dispatcher says of it."""
        everything = [token(name, len(prompt) + place) for place in range(max_tokens)]
        stop = [] if stop_after is None else [everything[stop_after - 1]]
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=stop,
            extra_args={f"headgate_{key}": value for key, value in said.items()},
        )
        hasher = get_request_block_hasher(BLOCK_TOKENS, self._hash)
        request = Request(name, prompt, parameters, None, block_hasher=hasher, resumable=resumable)
        if grammar:
            request.structured_output_request = SimpleNamespace(grammar=None, reasoning_ended=True)
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        expected = everything if stop_after is None else everything[: everything.index(stop[0]) + 1]
        tier = said.get("tier", "standard")
        known = Tier(str(tier)) if tier in set(Tier) else Tier.STANDARD
        asked = self.asked[name] = Asked(name, str(said.get("tenant", "unknown")), known, prompt, expected)
        self.scheduler.add_request(request)
        return asked

    def compile(self, name: str, *, broken: bool = False) -> None:
        """The grammar of a request that was asked with one is there, or will never be."""
        self.scheduler.requests[name].structured_output_request.grammar = ValueError() if broken else AnyGrammar()
        if broken:
            self.broken_grammars.add(name)

    def abort(self, *names: str) -> None:
        for name in names:
            self.asked[name].aborted = name in self.scheduler.requests
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def step(self, times: int = 1, *, while_it_runs: Callable[[], None] = lambda: None) -> None:
        """`while_it_runs`: between the two halves, where vLLM's core looks for aborts."""
        for _ in range(times):
            self.steps += 1
            if self.scheduler.has_requests():
                output = self.schedule()
                more = output.total_num_scheduled_tokens > 0 or self.scheduler.has_requests()
                if len(self.under_way) < 1 + self.setup.ahead and more:
                    continue
            if not self.under_way:
                return
            while_it_runs()
            self.check()
            self.update()

    def schedule(self) -> Any:
        """The first half: a step is on its way."""
        self.evicted.clear()
        native = self.scheduler.counts.native
        output = self.scheduler.schedule()
        self.under_way.append((output, self.worker.run(output)))
        native = self.scheduler.counts.native - native
        self.seen["native"] += native
        self.seen["evicted"] += len(self.evicted)
        for plan, eviction in self.evicted:
            self.seen[f"evicted by {eviction.strategy}"] += 1
            if plan.request.request_id not in self.running and not native:
                self.in_vain += 1
        self.check()
        return output

    def update(self) -> None:
        """The second: its results are there."""
        for name in [name for name, request in self.scheduler.requests.items() if request.num_stale_output_tokens]:
            self.seen["stale"] += name in self.under_way[0][0].num_scheduled_tokens
        outputs = self.scheduler.update_from_output(*self.under_way.popleft())
        for told in outputs.values():
            for output in told.outputs:
                self._note(output)
        self.check()

    def run(self) -> None:
        while self.scheduler.has_requests() or self.under_way:
            self.step()
            assert self.steps < STEPS_MAX, f"it does not come to an end: {sorted(self.scheduler.requests)} are here"

    def expected_so_far(self, name: str) -> list[int]:
        asked = self.asked[name]
        return asked.expected[: len(asked.tokens)]

    def check(self) -> None:
        self._check_blocks()
        self._check_lists()
        self._check_swap()

    def check_the_end(self) -> None:
        """Everybody is told of his end once, has his tokens, is charged for them, and nothing is left behind."""
        self.clock.now_s += 1e6  # deadlines of those that are long gone are forgotten when they have passed
        self.scheduler.schedule()
        for asked in self.asked.values():
            self._check_outcome(asked)
        self._check_charges()
        self._check_emptiness()

    def _watch(self) -> None:
        """Spies, on what no figure tells: for whom somebody was evicted, and the order that vLLM finds."""
        admission, scheduler, manager = self.scheduler.admission, self.scheduler, self.scheduler.kv_cache_manager
        plan_next, evict, step_starts = admission.next_plan, scheduler._evict, manager.new_step_starts
        last: list[AdmissionPlan] = []
        pop = scheduler.waiting.pop_request

        def planned(room: Any) -> AdmissionPlan | None:
            plan: AdmissionPlan | None = plan_next(room)
            if plan is not None and plan.evictions:
                last[:] = [plan]
            return plan

        def evicted(eviction: Eviction) -> None:
            self._check_eviction(last[0], eviction)
            self.evicted.append((last[0], eviction))
            evict(eviction)

        def popped() -> Request:
            request: Request = pop()
            self._check_reserve(request)
            return request

        def starts() -> None:
            order = [self.policy.eviction_key(name) for name in self.running]
            assert order == sorted(order), "vLLM would not evict the least urgent"
            step_starts()

        scheduler.waiting.pop_request = popped
        admission.next_plan, scheduler._evict, manager.new_step_starts = planned, evicted, starts

    def _check_eviction(self, plan: AdmissionPlan, eviction: Eviction) -> None:
        settings, resident, head = self.policy.settings, eviction.resident, plan.request
        assert eviction in plan.evictions
        assert resident.request_id in self.running
        assert head.request_id not in self.running
        assert resident.tier.rank > head.tier.rank or (
            resident.tier is head.tier and settings.lead_max < float("inf")
        ), f"{resident.tier} was evicted for {head.tier}"
        assert not self.policy.tier_state(resident.request_id).protected(settings)

    def _check_reserve(self, request: Request) -> None:
        """It was let in, or is about to be skipped and holds nothing."""
        manager, settings = self.scheduler.kv_cache_manager, self.policy.settings
        (held,) = manager.get_block_ids(request.request_id)
        if not held or not settings.premium_reserve or self.policy.tier_state(request.request_id).tier in RESERVED_FOR:
            return
        used = 0
        for one in self.scheduler.running:
            if self.policy.tier_state(one.request_id).tier in RESERVED_FOR:
                blocks = manager.get_blocks(one.request_id).blocks[0]
                used += sum(block.ref_cnt - (block.block_id in held) == 1 for block in blocks)
        reserve = ceil(settings.premium_reserve * self.setup.blocks)
        assert manager.block_pool.get_num_free_blocks() >= reserve - used, "it took of the reserve"

    def _check_blocks(self) -> None:
        manager = self.scheduler.kv_cache_manager
        held: set[int] = set()
        for name in self.scheduler.requests:
            (blocks,) = manager.get_block_ids(name)
            assert not blocks or name in self.running, f"{name} waits and holds blocks"
            assert len(set(blocks)) == len(blocks)
            assert self.setup.caching or not held & set(blocks), "a block of two"
            held |= set(blocks)
        deferred = sum(len(blocks) for _, blocks in self.scheduler.deferred_frees)
        assert manager.block_pool.get_num_free_blocks() + len(held) + deferred == self.setup.blocks
        (single,) = manager.coordinator.single_type_managers
        assert set(single.req_to_blocks) <= set(self.running)

    def _check_lists(self) -> None:
        scheduler, policy = self.scheduler, self.policy
        running, waiting = self.running, [request.request_id for request in scheduler.waiting]
        assert len(set(running)) == len(running)
        assert not set(running) & set(waiting)
        assert set(running) | set(waiting) == set(scheduler.requests)
        assert not len(scheduler.kv_holding_waiting)
        assert all(policy.is_running(name) for name in running)
        assert not any(policy.is_running(name) for name in waiting)
        assert len(scheduler.waiting) == len(waiting) == policy.waiting
        assert len(running) == policy.running <= self.setup.batch
        for tier in Tier:
            assert policy.waiting_in(tier) == sum(policy.tier_state(name).tier is tier for name in waiting)
        assert scheduler.deferred_waiting <= set(scheduler.waiting)

    def _check_swap(self) -> None:
        if self.scheduler.connector is None:
            return
        ledger = self.scheduler.connector.ledger
        waiting = {request.request_id for request in self.scheduler.waiting}
        assert set(ledger.held) <= waiting, "swapped out, and not waiting"
        used = [block for _, blocks in ledger.held.values() for block in blocks]
        assert len(set(used)) == len(used)
        assert ledger.usage.used_bytes == len(used) * ledger.block_bytes

    def _note(self, output: Any) -> None:
        asked = self.asked[output.request_id]
        assert not asked.ends, f"{asked.name} hears of itself after its end"
        asked.tokens += output.new_token_ids
        assert asked.tokens == self.expected_so_far(asked.name), f"wrong tokens of {asked.name}"
        if output.finish_reason is not None:
            asked.ends.append((str(output.finish_reason), output.stop_reason))

    def _check_outcome(self, asked: Asked) -> None:
        assert asked.tokens == self.expected_so_far(asked.name)
        if asked.aborted:
            assert not asked.ends, "its client had gone"
            return
        ((reason, stop),) = asked.ends
        if reason in ("stop", "length"):
            assert asked.tokens == asked.expected
        elif reason == "error":
            assert asked.name in self.broken_grammars
            assert not asked.tokens
        else:
            assert reason == "abort"
            assert str(stop).startswith(ENDED)

    def _check_charges(self) -> None:
        inputs: Counter[str] = Counter()
        outputs: Counter[str] = Counter()
        found: Counter[str] = Counter()
        for asked in self.asked.values():
            outputs[asked.tenant] += len(asked.tokens)
            if asked.name in self.worker.first_computed:
                inputs[asked.tenant] += len(asked.prompt)
                found[asked.tenant] += self.worker.first_computed[asked.name]
        received = self.policy.received
        assert {name: got.input_tokens for name, got in received.items()} == {k: v for k, v in inputs.items() if v}
        assert {name: got.output_tokens for name, got in received.items()} == {k: outputs[k] for k in received}
        for name, got in received.items():
            service = inputs[name] - 0.9 * found[name] + 2 * outputs[name]
            assert abs(got.service - service) < 1e-6
        given = self.policy.shares.total
        assert abs(given - inputs.total() - 2 * outputs.total()) < 1e-6

    def _check_emptiness(self) -> None:
        scheduler, policy, manager = self.scheduler, self.policy, self.scheduler.kv_cache_manager
        assert manager.block_pool.get_num_free_blocks() == self.setup.blocks
        assert not scheduler.requests
        assert policy.waiting == policy.running == 0
        for holder in (
            policy,
            scheduler.admission,
            scheduler.waiting,
            scheduler._reports,
            scheduler._reports._cost_tracker,
        ):
            _empty(holder, excluding=_KEPT_BY_DESIGN)
        for inner in policy._tiers.values():
            for kept in (inner._waiting, inner._running, inner._queues, inner._received._requests):
                assert not kept
        assert not scheduler._unsent
        assert not scheduler._dropping
        assert scheduler.waiting._head is None


_KEPT_BY_DESIGN = {"_tiers", "_evictable", "_began"}
"""Policies of the tiers there are; counts that are 0 again; the step that `check_the_end` makes and never runs."""


def _empty(holder: Any, excluding: set[str]) -> None:
    for name, value in vars(holder).items():
        if isinstance(value, Counter):
            assert not any(value.values()), name
        elif isinstance(value, dict | set | list | deque) and name not in excluding:
            assert not value, f"{type(holder).__name__}.{name} keeps {value}"


def _as_set_up(made: Configured, setup: Setup) -> tuple[Any, Any]:
    config = copy(made.config)
    config.scheduler_config = copy(config.scheduler_config)
    config.cache_config = copy(config.cache_config)
    config.model_config = copy(config.model_config)
    blocks = setup.blocks + 1  # one is vLLM's own
    config.scheduler_config.max_num_seqs = setup.batch
    config.scheduler_config.max_num_batched_tokens = setup.step_tokens
    config.scheduler_config.async_scheduling = setup.ahead
    config.scheduler_config.disable_hybrid_kv_cache_manager = True  # as vLLM itself where a connector cannot do with it
    config.cache_config.enable_prefix_caching = setup.caching
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = BLOCK_TOKENS
    config.model_config.max_model_len = CONTEXT_TOKENS
    config.additional_config = {"headgate": {"policy": setup.policy, "tiers": dict(setup.tiers)}}
    (group,), (placed,) = made.cache.kv_cache_groups, made.cache.kv_cache_tensors
    spec = replace(group.kv_cache_spec, block_size=BLOCK_TOKENS)
    stride = placed.block_stride * BLOCK_TOKENS // group.kv_cache_spec.block_size
    outermost = placed.layer_stride >= made.cache.num_blocks * placed.block_stride
    placed = replace(
        placed,
        size=blocks * stride,
        block_stride=stride,
        layer_stride=blocks * stride if outermost else stride // len(placed.layers),
    )
    cache_config = replace(
        made.cache,
        num_blocks=blocks,
        kv_cache_tensors=[placed],
        kv_cache_groups=[replace(group, kv_cache_spec=spec)],
        hash_block_size=BLOCK_TOKENS,
    )
    if setup.swap_blocks is not None:
        width = stride * (len(placed.layers) if outermost else 1)
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="SwapConnector",
            kv_connector_module_path="gpu_worker.engines.vllm.swap",
            kv_role="kv_producer",
            kv_connector_extra_config={"swap_gib": (setup.swap_blocks + 0.5) * width / (1 << 30)},
        )
    return config, cache_config


@contextmanager
def clock_of_ours() -> Iterator[Clock]:
    """Our modules read this one; a machine's copy rates are measured once."""
    clock = Clock()
    with MonkeyPatch.context() as patch:
        patch.setattr(vllm_scheduler, "time", clock)
        patch.setattr(vllm_reports, "time", clock)
        patch.setattr(vllm_reports, "measure_copy_rates", _copy_rates)
        yield clock


_copy_rates = cache(measure_copy_rates)
