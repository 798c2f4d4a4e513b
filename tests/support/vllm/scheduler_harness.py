"""Our scheduler in vLLM without a model: driven as vLLM's core drives it, each step answered by FakeModelRunner.

A whole schedule takes milliseconds. Every invariant (scheduler_checks.py) is checked after each half of a step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.figures import KnownFigures
from gpu_worker.engines.vllm.reports import STATS_KEY
from gpu_worker.engines.vllm.scheduler import AsyncTierScheduler, TierScheduler
from gpu_worker.policies.admission import AdmissionPlan
from gpu_worker.policies.preemption import Eviction
from tests.support.vllm import scheduler_checks
from tests.support.vllm.model_runner import BLOCK_TOKENS, FakeModelRunner, token_at
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, configs_of
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

STEPS_MAX = 1500


class AnyGrammar:
    """A compiled grammar that accepts every token."""

    def accept_tokens(self, name: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


@dataclass
class SentRequest:
    """A request, the output that it should get, and the output that it got."""

    name: str
    tenant: str
    tier: Tier
    prompt: list[int]
    expected: list[int]
    tokens: list[int] = field(default_factory=list)
    ends: list[tuple[str, str | None]] = field(default_factory=list)
    """(finish reason, stop reason) of each final output."""
    aborted: bool = False


class SchedulerHarness:
    def __init__(self, base: BaseConfig, setup: Setup, time: FakeTime) -> None:
        self.setup, self.time = setup, time
        self.config, cache_config = configs_of(base, setup)
        kind = AsyncTierScheduler if setup.ahead else TierScheduler
        self.scheduler: Any = kind(
            vllm_config=self.config,
            kv_cache_config=cache_config,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.known = KnownFigures()
        """What the scheduler has reported."""
        self.scheduler.use_v2_model_runner = setup.v2
        self.scheduler.requires_kv_delivery = setup.hands_off
        self.model_runner = FakeModelRunner()
        self.sent: dict[str, SentRequest] = {}
        self.in_flight: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.steps = 0
        self.evicted: list[tuple[AdmissionPlan, Eviction]] = []
        """Planned evictions of the last schedule."""
        self._planned: list[str] | None = None
        """What the plan of this step admitted; None without a plan."""
        self._admitted: list[str] = []
        """What the plan of the last schedule admitted, if there was one."""
        self.useless_evictions = 0
        """Planned evictions for a request that was not admitted, although vLLM evicted nothing natively."""
        self.seen: Counter[str] = Counter()
        self.broken_grammars: set[str] = set()
        self.ended_in_prefill: set[str] = set()
        self._hash = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(self._hash)
        self._wrap()

    @property
    def policy(self) -> Any:
        return self.scheduler.queue_policy

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int,
        *,
        stop_after: int | None = None,
        grammar: bool = False,
        resumable: bool = False,
        images: Mapping[int, int] | None = None,
        adapter: Any = None,
        salt: str | None = None,
        **fields: object,
    ) -> SentRequest:
        """Add a request. `stop_after`: it ends after so many tokens, unknown to the scheduler. `images`: the places of
        its images in the prompt, with their tokens. `adapter`: the number of its LoRA adapter. `salt`: of its prefixes.
        `fields`: the dispatcher's."""
        output = [token_at(name, len(prompt) + place) for place in range(max_tokens)]
        stop = [] if stop_after is None else [output[stop_after - 1]]
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=stop,
            extra_args={f"headgate_{key}": value for key, value in fields.items()},
        )
        hasher = get_request_block_hasher(BLOCK_TOKENS, self._hash)
        features = [
            MultiModalFeatureSpec(None, "image", f"{name} {place}", PlaceholderRange(place, tokens))
            for place, tokens in (images or {}).items()
        ]
        lora = None if adapter is None else LoRARequest(f"adapter-{adapter}", adapter, "/adapter")
        request = Request(
            *(name, prompt, parameters, None),
            mm_features=features, block_hasher=hasher, resumable=resumable, lora_request=lora, cache_salt=salt,
        )  # fmt: skip
        if grammar:
            request.structured_output_request = SimpleNamespace(grammar=None, reasoning_ended=True)
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        expected = output if stop_after is None else output[: output.index(stop[0]) + 1]
        tier = fields.get("tier", "standard")
        known = Tier(str(tier)) if tier in set(Tier) else Tier.STANDARD
        sent = self.sent[name] = SentRequest(name, str(fields.get("tenant", "unknown")), known, prompt, expected)
        self.scheduler.add_request(request)
        return sent

    def compile(self, name: str, *, broken: bool = False) -> None:
        """End the compilation of a request's grammar; `broken`: with an error."""
        self.scheduler.requests[name].structured_output_request.grammar = ValueError() if broken else AnyGrammar()
        if broken:
            self.broken_grammars.add(name)

    def abort(self, *names: str) -> None:
        for name in names:
            self.sent[name].aborted = name in self.scheduler.requests
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def step(self, times: int = 1, *, between: Callable[[], None] = lambda: None) -> None:
        """Run steps. `between`: called between the two halves, where vLLM's core handles aborts."""
        for _ in range(times):
            self.steps += 1
            if self.scheduler.has_requests():
                output = self.schedule()
                more = output.total_num_scheduled_tokens > 0 or self.scheduler.has_requests()
                if len(self.in_flight) < 1 + self.setup.ahead and more:
                    continue
            if not self.in_flight:
                return
            between()
            scheduler_checks.check_step(self)
            self.update()

    def schedule(self) -> Any:
        """Run the first half of a step: schedule it, and compute its results."""
        self.evicted.clear()
        self._admitted.clear()
        self._planned = None
        native = self.scheduler.counts.native
        before = {request.request_id: request.num_preemptions for request in self.scheduler.running}
        output = self.scheduler.schedule()
        self.in_flight.append((output, self.model_runner.run(output)))
        native = self.scheduler.counts.native - native
        self.seen["native"] += native
        self.seen["evicted"] += len(self.evicted)
        for plan, eviction in self.evicted:
            self.seen[f"evicted by {eviction.strategy}"] += 1
            if plan.request.request_id not in self.running and not native:
                self.useless_evictions += 1
        if self._planned is not None and not native:
            self._compare_with_plan(self._planned, before)
        scheduler_checks.check_step(self)
        return output

    def _compare_with_plan(self, planned: list[str], before: dict[str, int]) -> None:
        """Check that vLLM admitted what the plan did, and count what it admitted beside it. `before`: the preemptions
        of the requests that ran."""
        entered = [
            request.request_id
            for request in self.scheduler.running
            if before.get(request.request_id) != request.num_preemptions
        ]
        assert set(planned) <= set(entered), f"planned {planned}, admitted {entered}"
        self.seen["planned"] += len(planned)
        self.seen["admitted beside the plan"] += len(entered) - len(planned)

    def update(self) -> None:
        """Run the second half of a step: give its results to the scheduler."""
        for name in [name for name, request in self.scheduler.requests.items() if request.num_stale_output_tokens]:
            self.seen["stale"] += name in self.in_flight[0][0].num_scheduled_tokens
        for client_outputs in self.scheduler.update_from_output(*self.in_flight.popleft()).values():
            stats = client_outputs.scheduler_stats
            if stats is not None and (report := (stats.kv_connector_stats or {}).get(STATS_KEY)) is not None:
                self.known.apply(report)
            for output in client_outputs.outputs:
                self._receive(output)
        scheduler_checks.check_step(self)

    def _receive(self, output: Any) -> None:
        sent = self.sent[output.request_id]
        assert not sent.ends, f"{sent.name} gets output after its end"
        if output.finish_reason is not FinishReason.ABORT:  # then its token is a placeholder
            sent.tokens += output.new_token_ids
        assert sent.tokens == self.expected_so_far(sent.name), f"wrong tokens of {sent.name}"
        if output.finish_reason is not None:
            sent.ends.append((str(output.finish_reason), output.stop_reason))

    def run(self) -> None:
        while self.scheduler.has_requests() or self.in_flight:
            self.step()
            assert self.steps < STEPS_MAX, f"these requests never end: {sorted(self.scheduler.requests)}"

    def finish(self) -> None:
        self.run()
        self.check_end()

    def expected_so_far(self, name: str) -> list[int]:
        sent = self.sent[name]
        return sent.expected[: len(sent.tokens)]

    def check_end(self) -> None:
        """Check that each request ended once, has its tokens and is charged for them, and that no state is left."""
        self.time.now_s += 1e6  # past every deadline
        self.scheduler.schedule()
        scheduler_checks.check_end(self)

    def _wrap(self) -> None:
        """Wrap the scheduler to check each eviction, each admission and the order of the running requests."""
        admission, scheduler, manager = self.scheduler.admission, self.scheduler, self.scheduler.kv_cache_manager
        next_plan, evict, new_step_starts = admission.next_plan, scheduler._evict, manager.new_step_starts
        pop_request, put_first = scheduler.waiting.pop_request, scheduler.waiting.put_first
        count_prompt = self.policy.on_prompt_counted
        last: list[AdmissionPlan] = []

        def checked_plan(kv_budget: Any) -> AdmissionPlan | None:
            plan: AdmissionPlan | None = next_plan(kv_budget)
            if plan is not None and plan.evictions:
                last[:] = [plan]
            if plan is not None:
                self._admitted.append(plan.request.request_id)
            return plan

        def checked_evict(eviction: Eviction) -> None:
            scheduler_checks.check_eviction(self, last[0], eviction)
            self.evicted.append((last[0], eviction))
            evict(eviction)

        def noted_plan(planned: dict[str, None]) -> None:
            self._planned = [name for name in self._admitted if name in planned]
            put_first(planned)

        def checked_pop() -> Request:
            request: Request = pop_request()
            scheduler_checks.check_reserve(self, request)
            return request

        def checked_start() -> None:
            order = [self.policy.eviction_key(name) for name in self.running]
            assert order == sorted(order), "vLLM would not evict the least urgent"
            new_step_starts()

        def noted_prompt(name: str, input_tokens: int) -> None:
            self.ended_in_prefill.add(name)
            count_prompt(name, input_tokens)

        self.policy.on_prompt_counted = noted_prompt
        scheduler.waiting.pop_request, scheduler.waiting.put_first = checked_pop, noted_plan
        admission.next_plan, scheduler._evict, manager.new_step_starts = checked_plan, checked_evict, checked_start
