"""vLLM's waiting queue in the order of our policy: a pop admits; a prepend undoes the admission, or preempts.

The plan of a pass (scheduler.py) admits requests before vLLM does: a pop then confirms the admission. Admissions that
vLLM has not confirmed at the end of the pass are undone. The whole plan is undone as soon as vLLM preempts by itself,
because vLLM admits none in that step.

vLLM's `schedule()` peeks at the head, allocates, and pops. A request that it skips (its grammar has an error, or there
are too many LoRAs) it pops first and prepends later in the same pass. So a prepend after a pop in the same pass returns
the charge of the pop: the request was not served. Any other prepend is of a running request that was preempted.

While another thread compiles a request's grammar, vLLM would skip it in each step. The policy sets it aside for that
time, so that thousands of them cost a step little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.kv_budget import VllmKvBudget, is_compiling
from gpu_worker.engines.vllm.protocol import RequestFields, request_fields
from gpu_worker.engines.vllm.room import has_slot, may_lack_room
from gpu_worker.engines.vllm.settings import TENANTS_VARIABLE, SchedulerSettings
from gpu_worker.policies.adapters import AdapterTurns, HeldBack, LoadedAdapters
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.loaded_first import LoadedFirst
from gpu_worker.policies.fairness.locality import PrefixLookups

_log = init_logger(__name__)
_IGNORED = (
    "headgate ignores the headgate_ fields of requests, because a client may have set them; where no client can, as in"
    " LLM(), set trust_client_fields in additional_config"
)
_NAMELESS = (
    f"a request has no tenant although {TENANTS_VARIABLE} is set, so it is of the tenant unknown: name the middleware"
    " headgate_vllm.Tenants, which vLLM's gRPC server does not call, or use headgate_vllm.for_tenant in Python"
)


class PolicyQueue(RequestQueue):  # type: ignore[misc]
    """`scheduler`: vLLM's, which this queue is of. `kv_budget`: makes the budget as of now; needed only with a premium
    reserve and with locality. `adapters`: None without LoRA."""

    def __init__(
        self,
        admission: Admission,
        scheduler: Any,
        kv_budget: Callable[[], VllmKvBudget],
        monotonic_s: Callable[[], float],
        settings: SchedulerSettings,
        adapters: LoadedAdapters | None = None,
    ) -> None:
        self.admission = admission
        self.policy = admission.policy
        self.refused: list[tuple[Request, str]] = []
        """Requests that were not accepted, with the reason: the scheduler ends them."""
        self.wrong_fields = 0
        """The dispatcher's fields that could not be read, of all requests so far."""
        self.resetting = False
        """Whether vLLM resets its cache now, and preempts every request for it."""
        self._kv_budget = kv_budget
        self._scheduler = scheduler
        self._monotonic_s = monotonic_s
        self._settings = settings
        self._warned: set[str] = set()
        self._pass_budget: VllmKvBudget | None = None
        """The budget of this pass, while every change of it is noted."""
        self._requests: dict[str, Request] = {}
        self._adapters = adapters
        self._turns = AdapterTurns(self.policy, admission.settings.adapter_lead)
        self._held_back = HeldBack(self.policy)
        self._has_begun_adapters = False
        """Whether requests that were held back have come back in this pass."""
        self._compiling: dict[str, Request] = {}
        """Requests that the policy has set aside, because their grammars are being compiled."""
        self._popped: dict[str, Request] = {}
        """Requests admitted in this pass."""
        self._planned: dict[str, None] = {}
        """Requests that were admitted in this pass before vLLM popped them, in their order."""
        self._head: Request | None = None
        """The next request, once it is known; None after any change."""
        self._first: QueueRequest | None = None
        """The policy's next request, once it is known; None after any change."""
        self._has_prompts = False
        self._always_has_next = (
            self.policy.work_conserving and not admission.settings.premium_reserve and adapters is None
        )
        """Whether a queue has a next one in any case, if not all its requests wait for grammars."""
        self._lookup_budget: VllmKvBudget | None = None
        self._lookups = self._make_lookups()
        if self._lookups is not None:
            self.policy.use_lookups(self._lookups)

    def begin_pass(self, *, has_prompts: bool) -> None:
        """Forget the head: charges since the last pass may have changed the order. `has_prompts`: whether running
        requests compute prompts."""
        self._has_prompts = has_prompts
        self._forget_head()
        self._pass_budget = self._lookup_budget = None
        if self._lookups is not None:
            self._lookups.begin_pass()
        self._turns.begin_pass()
        self._has_begun_adapters = False
        for request_id in [name for name, request in self._compiling.items() if not is_compiling(request)]:
            del self._compiling[request_id]
            self.policy.take_back(request_id)

    def put_first(self, planned: dict[str, None]) -> None:
        """Put these first in this pass, in this order. The plan has admitted them already."""
        self._planned = planned
        self._forget_head()

    def end_pass(self) -> None:
        """Undo the planned admissions that vLLM did not make; forget the pops of this pass: those requests run now."""
        if self._adapters is not None:
            self._load_adapters(self._adapters)
        self._popped.clear()
        if self._planned:
            self._undo_plan()

    def _undo_plan(self) -> None:
        for request_id in reversed(self._planned):
            self.policy.undo_admit(request_id)
        self._planned.clear()
        self._forget_head()

    def add_request(self, request: Request) -> None:
        self._forget_head()
        if (refusal := self._refusal(request)) is None:
            self._requests[request.request_id] = request
            if is_compiling(request):
                self._compiling[request.request_id] = request
                self.policy.set_aside(request.request_id)
        else:
            self.refused.append((request, refusal))

    def peek_request(self) -> Request:
        if (request := self._next()) is None:
            raise IndexError("peek from an empty queue")
        return request

    def pop_request(self) -> Request:
        request = self.peek_request()
        if request.request_id in self._planned:
            del self._planned[request.request_id]
        else:
            self.policy.admit(request.request_id)
        self._popped[request.request_id] = request
        del self._requests[request.request_id]
        self._forget_head()
        if self._pass_budget is not None:
            self._pass_budget.note_entered(request)
        if request.num_preemptions:
            self.policy.on_generated(request.request_id, request.num_output_tokens)  # one may have come meanwhile
        elif (stats := request.prefill_stats) is not None:
            self.policy.on_cached(request.request_id, stats.num_local_cached_tokens + stats.num_external_cached_tokens)
        return request

    def prepend_request(self, request: Request) -> None:
        self._forget_head()
        self._pass_budget = None
        if request.request_id in self._popped:
            del self._popped[request.request_id]
            self.policy.undo_admit(request.request_id)
        else:
            self._undo_plan()
            self.policy.preempt(request.request_id, counts=not self.resetting)
        self._requests[request.request_id] = request

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove requests that end; the scheduler removes them from the policy when it frees them."""
        for request in requests:
            if request.request_id in self._planned:
                self._undo_plan()
            self._requests.pop(request.request_id, None)
            self._compiling.pop(request.request_id, None)
            self._held_back.forget(request.request_id)
        self._forget_head()

    def __bool__(self) -> bool:
        """Return whether a request can be admitted, if the batch has a slot. vLLM calls this in every step, so the head
        is computed only if a non-empty queue may have none."""
        if len(self._compiling) == len(self._requests):
            return False
        if self._always_has_next or not has_slot(self._scheduler):
            return True
        return self._next() is not None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def request_of(self, request_id: str) -> Request:
        return self._requests[request_id]

    def _load_adapters(self, adapters: LoadedAdapters) -> None:
        """Charge the loads of adapters for the requests of this pass; not those of requests that resume."""
        for request in self._popped.values():
            lora = request.lora_request
            if lora is None:
                continue
            self._turns.on_entered(self.policy.record(request.request_id).request)
            if adapters.use(lora.lora_int_id) and not request.num_preemptions:
                self.policy.on_adapter_loaded(request.request_id)

    def _next(self) -> Request | None:
        """Return the head; None if the next request may not use the remaining (reserved) blocks."""
        if self._head is None and self._requests:
            head = next(iter(self._planned), None) or self._next_by_policy()
            self._head = None if head is None else self._requests[head]
        return self._head

    def _forget_head(self) -> None:
        self._head = self._first = None
        if self._adapters is not None:
            self._adapters.forget_in_use()

    def first_by_policy(self) -> QueueRequest | None:
        """Return the policy's next request. What else keeps a request from being next is not considered."""
        if self._first is None:
            self._first = self.policy.peek()
        return self._first

    def _next_by_policy(self) -> str | None:
        self.take_back_adapters()
        while (head := self._peek()) is not None and not self._may_enter(head):
            if not self.hold_back(head.request_id):
                return self._next_of_other_tiers()
        return None if head is None else head.request_id

    def _next_of_other_tiers(self) -> str | None:
        """Return the next request if the first one cannot enter, and the pass may set aside no more."""
        if self.admission.settings.premium_reserve:
            return None
        return next((head.request_id for head in self.policy.heads() if self._may_enter(head)), None)

    def take_back_adapters(self) -> None:
        """Let requests that were held back and may find the place of their adapter be next again; once in a pass."""
        if self._adapters is not None and not self._has_begun_adapters:
            self._has_begun_adapters = True
            self._held_back.begin_pass(self._adapters.in_use, is_full=self._adapters.is_full)
            self._first = None

    def hold_back(self, request_id: str) -> bool:
        """Go on without a request that cannot have the place of its adapter now. Return False if the pass may hold back
        no more."""
        self._first = None
        return self._held_back.add(request_id, self._requests[request_id].lora_request.lora_int_id)

    def _peek(self) -> QueueRequest | None:
        return self.first_by_policy() if not self.admission.settings.premium_reserve else self._next_with_reserve()

    def _may_enter(self, head: QueueRequest) -> bool:
        """Return whether the request's adapter has a place, and no request waits for one before it."""
        lora = self._requests[head.request_id].lora_request
        if self._adapters is None or lora is None:
            return True
        lacks_place = self._adapters.lacks_place(lora.lora_int_id)
        return self.may_pass(head, lacks_place=lacks_place) and not lacks_place

    def may_pass(self, head: QueueRequest, *, lacks_place: bool) -> bool:
        """Return whether no request that waits for the place of its adapter comes first (policies/adapters.py)."""
        return self._turns.may_pass(head, lacks_place=lacks_place)

    def _next_with_reserve(self) -> QueueRequest | None:
        head = self.first_by_policy()
        if head is None or not has_slot(self._scheduler):
            return head  # without a slot vLLM admits none: it need not be known which fits
        if self._has_ample_room(head):
            return head
        budget = self._pass_budget = self._pass_budget or self._kv_budget()
        plan = self.admission.next_plan(budget)
        return None if plan is None or plan.evictions else plan.request

    def _has_ample_room(self, head: QueueRequest) -> bool:
        """Return whether the request certainly leaves the whole reserve free: a fast check."""
        if self._has_prompts or self._adapters is not None:
            return False
        kept_free = self.admission.reserve(self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks)
        return not may_lack_room(self._scheduler, self._requests[head.request_id], kept_free)

    def _make_lookups(self) -> PrefixLookups | None:
        """Make what chooses within the tenant that is next; None for the first to arrive."""
        if self.policy.loaded_first and self._adapters is not None:
            prefixes = (self._cached_tokens,) if self.policy.locality else ()
            return LoadedFirst(self._needs_no_load, *prefixes)
        return PrefixLookups(self._cached_tokens) if self.policy.locality else None

    def _needs_no_load(self, request_id: str) -> bool:
        lora = self._requests[request_id].lora_request
        return lora is None or self._adapters is None or not self._adapters.needs_load(lora.lora_int_id)

    def _cached_tokens(self, request_id: str) -> int:
        self._lookup_budget = self._lookup_budget or self._kv_budget()
        return self._lookup_budget.cached_tokens(request_id)

    def _refusal(self, request: Request) -> str | None:
        """Add the request to the policy, or return the reason to refuse it: invalid fields, or too large to be admitted
        again after a preemption."""
        now_s, fields = self._monotonic_s(), request_fields(request, self._settings)
        if fields.ignored:
            self._warn_once(_IGNORED)
        elif self._settings.expects_tenants and not fields.is_named:
            self._warn_once(_NAMELESS)
        if fields.wrong:
            self.wrong_fields += len(fields.wrong)
            return "invalid"
        described = _queue_request(request, fields, now_s)
        if request.resumable:  # a request is charged for one prompt only
            return "invalid"
        if not self._fit(request, described.tier, fields.output_max):
            return "too_large"
        return None if self.admission.enqueue(described, now_s) else "refused"

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning(sentence)

    def _fit(self, request: Request, tier: Tier, output_max: int | None) -> bool:
        """Return whether the request can ever have its blocks. If its client set no limit, shorten it to what fits."""
        if output_max is not None:
            request.max_tokens = max(1, min(request.max_tokens, output_max))
        if not self.admission.settings.premium_reserve:
            return True
        kv_budget = self._kv_budget()
        blocks_max = self.admission.blocks_max(tier, kv_budget.blocks_total)
        if output_max is not None:
            left = kv_budget.tokens_in(blocks_max) - request.num_prompt_tokens
            request.max_tokens = max(1, min(request.max_tokens, left))
        return kv_budget.blocks_needed_max(request) <= blocks_max


def _queue_request(request: Request, fields: RequestFields, now_s: float) -> QueueRequest:
    """Return the request as the policy sees it."""
    expected = fields.output_expected
    return QueueRequest(
        request.request_id,
        fields.tenant,
        request.num_prompt_tokens,
        fields.weight,
        app=fields.app,
        stage=fields.stage,
        interaction=fields.interaction,
        system_tokens=min(fields.system_tokens, request.num_prompt_tokens),
        output_tokens_max=request.max_tokens if expected is None else expected,
        tier=fields.tier,
        deadline_s=now_s + fields.timeout_s,
    )


def loaded_adapters(scheduler: Any) -> LoadedAdapters | None:
    """Return the adapters that vLLM's device holds, none yet; None if it has no LoRA."""
    if not scheduler.lora_config:
        return None

    def in_use() -> set[int]:
        return {each.lora_request.lora_int_id for each in scheduler.running if each.lora_request is not None}

    return LoadedAdapters(scheduler.lora_config.max_loras, in_use)
