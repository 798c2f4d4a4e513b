"""vLLM's waiting queue, in the order of our policy: who is popped is admitted, who comes back is put back or preempted.

`schedule()` looks at the head, allocates, and pops; a request that it skips (a grammar that is not compiled yet, a LoRA
too many) it pops first and prepends later. So a charge made at the pop is returned where the same pass prepends: that
request was never served. One that is prepended without having been popped in this pass was running: it was evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.kv_budget import VllmKvBudget
from gpu_worker.policies.preemption.admission import Admission
from gpu_worker.policies.request import QueueRequest

TENANT_UNKNOWN = "unknown"
ARGUMENT = "headgate_"
"""Before the names of what the dispatcher says, in `SamplingParams.extra_args` (`vllm_xargs` in OpenAI's body)."""


class PolicyQueue(RequestQueue):  # type: ignore[misc]
    """`room`: what the engine has, asked where blocks are reserved. `tierless`: all stand in one tier, whatever is said
    of them."""

    def __init__(
        self,
        admission: Admission,
        room: Callable[[], VllmKvBudget],
        monotonic_s: Callable[[], float],
        *,
        tierless: bool = False,
    ) -> None:
        self.admission = admission
        self.policy = admission.policy
        self.refused: list[tuple[Request, str]] = []
        """Not let in, and why: the scheduler ends them."""
        self._room = room
        self._monotonic_s = monotonic_s
        self._tierless = tierless
        self._requests: dict[str, Request] = {}
        self._popped: set[str] = set()
        self._first: list[str] = []
        self._head: Request | None = None

    def pass_begins(self) -> None:
        """What was charged since the last one may have changed who is next."""
        self._head = None

    def go_first(self, request_ids: list[str]) -> None:
        """In this pass these are next, in this order: for them others were evicted, who might come before them now."""
        self._first = [*request_ids]
        self._head = None

    def pass_ends(self) -> None:
        """Who was popped runs now."""
        self._popped.clear()
        self._first.clear()

    def add_request(self, request: Request) -> None:
        self._head = None
        if (refused := self._refuses(request)) is None:
            self._requests[request.request_id] = request
        else:
            self.refused.append((request, refused))

    def peek_request(self) -> Request:
        if (request := self._next()) is None:
            raise IndexError("peek from an empty queue")
        return request

    def pop_request(self) -> Request:
        request = self.peek_request()
        self.policy.admit(request.request_id)
        self._popped.add(request.request_id)
        del self._requests[request.request_id]
        self._head = None
        if request.num_preemptions:
            self.policy.generated(request.request_id, request.num_output_tokens)  # one may have come as it waited
        elif (found := request.prefill_stats) is not None:
            self.policy.cached(request.request_id, found.num_local_cached_tokens + found.num_external_cached_tokens)
        return request

    def prepend_request(self, request: Request) -> None:
        self._head = None
        if request.request_id in self._popped:
            self._popped.discard(request.request_id)
            self.policy.undo_admit(request.request_id)
        else:
            self.policy.preempt(request.request_id)
        self._requests[request.request_id] = request

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """They end: the policy hears of it when the scheduler frees them."""
        for request in requests:
            self._requests.pop(request.request_id, None)
        self._head = None

    def __bool__(self) -> bool:
        """Asked in every step, also where no place is free: who is next is worked out only where that may be nobody."""
        if self.policy.work_conserving and not self.admission.settings.premium_reserve:
            return bool(self._requests)
        return self._next() is not None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def of(self, request_id: str) -> Request:
        return self._requests[request_id]

    def is_ready(self, request_id: str) -> bool:
        """Whether vLLM would let it in now: it skips who waits for a grammar, or for a token of before its eviction."""
        request = self._requests[request_id]
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if request.status is not RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return True
        wanted = request.structured_output_request
        return wanted is not None and wanted.grammar is not None and not isinstance(wanted.grammar, Exception)

    def _next(self) -> Request | None:
        """Nobody where those who are next may not use the blocks that are left."""
        if self._head is None and self._requests:
            head = self._next_by_plan() or self._next_by_policy()
            self._head = None if head is None else self._requests[head]
        return self._head

    def _next_by_plan(self) -> str | None:
        while self._first and self._first[0] not in self._requests:
            self._first.pop(0)
        return self._first[0] if self._first else None

    def _next_by_policy(self) -> str | None:
        if not self.admission.settings.premium_reserve:
            head = self.policy.peek()
        else:
            plan = self.admission.next_plan(self._room())
            head = None if plan is None or plan.evictions else plan.request
        return None if head is None else head.request_id

    def _refuses(self, request: Request) -> str | None:
        """Why: what is no request to us, and what could never be let in again once it was evicted."""
        now_s = self._monotonic_s()
        try:
            described = queue_request(request, now_s)
        except (TypeError, ValueError, OverflowError):
            return "invalid"
        if self._tierless:
            described = replace(described, tier=Tier.STANDARD)
        if request.resumable:  # a request's service is charged by its one prompt
            return "invalid"
        if not self._can_fit(request, described.tier):
            return "too_large"
        return None if self.admission.enqueue(described, now_s) else "refused"

    def _can_fit(self, request: Request, tier: Tier) -> bool:
        if not self.admission.settings.premium_reserve:
            return True
        room = self._room()
        return room.needs_at_most(request) <= self.admission.blocks_max(tier, room.blocks_total)


def queue_request(request: Request, now_s: float) -> QueueRequest:
    """As the dispatcher described it; what it did not say is as of an unknown tenant of the standard tier."""
    parameters = request.sampling_params
    said: dict[str, Any] = (parameters.extra_args if parameters is not None else None) or {}

    def of(name: str, otherwise: Any) -> Any:
        return said.get(ARGUMENT + name, otherwise)

    return QueueRequest(
        request.request_id,
        str(of("tenant", TENANT_UNKNOWN)),
        request.num_prompt_tokens,
        float(of("weight", 1.0)),
        app=str(of("app", "")),
        stage=int(of("stage", 0)),
        interaction=str(of("interaction", "")),
        system_tokens=min(int(of("system_tokens", 0)), request.num_prompt_tokens),
        output_tokens_max=request.max_tokens,
        tier=Tier(of("tier", Tier.STANDARD)),
        deadline_s=now_s + float(of("timeout_s", inf)),
    )
