"""Decides which request enters the server next: the queue policy over the server's places. Pure.

A place is one sequence in the server; a request with `n` choices takes n of them, at most all. The policy sees a place
as a KV block, so that the premium reserve keeps places free. No request is evicted: its caller has tokens already, and
OpenAI's protocol cannot continue an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.preemption import Resident


class ServerPlaces:
    """The admission's `KvBudget`. `total`: sequences that the server computes at a time."""

    def __init__(self, total: int) -> None:
        self.blocks_total = total
        self.slots_free = total
        self.swap_bytes_free = 0.0
        self.running: dict[str, Resident] = {}
        self._wanted: dict[str, int] = {}

    @property
    def blocks_free(self) -> int:
        return self.blocks_total - sum(each.blocks for each in self.running.values())

    def want(self, request_id: str, places: int) -> None:
        self._wanted[request_id] = min(places, self.blocks_total)

    def blocks_needed(self, request_id: str) -> int:
        return self._wanted[request_id]

    def residents(self) -> Iterable[Resident]:
        return self.running.values()

    def enter(self, request: QueueRequest) -> None:
        name = request.request_id
        self.running[name] = Resident(name, request.tier, self._wanted[name], 0, 0)

    def leave(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        del self._wanted[request_id]


class ServerAdmission:
    """`policy`: which request is next. `places`: sequences in the server at a time."""

    def __init__(self, policy: QueuePolicy, places: int) -> None:
        self.admission = Admission(policy)
        self.admission.settings = replace(self.admission.settings, preemption=False)
        self.places = ServerPlaces(places)
        self.expired = 0
        self._policy = policy

    def arrive(self, request: QueueRequest, places: int, now_s: float) -> bool:
        """Enqueue a request. Return False if the policy refuses it."""
        if not self.admission.enqueue(request, now_s):
            return False
        most = self.admission.blocks_max(request.tier, self.places.blocks_total)
        self.places.want(request.request_id, max(1, min(places, most)))
        return True

    def admit(self, now_s: float) -> list[str]:
        """Return the requests that enter the server now, in order."""
        self.admission.begin_pass(now_s)
        entered = []
        while (plan := self.admission.next_plan(self.places)) is not None:
            self._policy.admit(plan.request.request_id)
            self.places.enter(plan.request)
            entered.append(plan.request.request_id)
        return entered

    def pop_expired(self, now_s: float) -> list[str]:
        """Return the requests past their deadline, each once."""
        self.admission.begin_pass(now_s)
        found = self.admission.pop_expired()
        self.expired += len(found)
        return found

    def progressed(self, request_id: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> None:
        """Charge the tokens of a request in the server: of its prompt, as counted by now, and of its output so far.
        `cached_tokens`: of the prompt; the server reports them with its last piece."""
        self._policy.on_prompt_counted(request_id, input_tokens)
        self._policy.on_generated(request_id, output_tokens)
        self._policy.on_cached(request_id, cached_tokens)

    def leave(self, request_id: str) -> None:
        """Remove a request that has ended, in the server or while it waited."""
        self._policy.remove(request_id)
        self.places.leave(request_id)

    def running_by_tier(self) -> tuple[Counter[Tier], Counter[Tier]]:
        """Return the requests in the server and their places, by tier."""
        running: Counter[Tier] = Counter()
        places: Counter[Tier] = Counter()
        for resident in self.places.running.values():
            running[resident.tier] += 1
            places[resident.tier] += resident.blocks
        return running, places
