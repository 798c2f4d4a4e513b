"""LoRA adapters of the paged model: places on the device, loads, and the requests that wait for a place.

The rules are those of our scheduler inside vLLM (policies/adapters.py): at most `max_loras` adapters are in use at
once; a request whose adapter has no place is held back in a pass of admissions, and later ones pass it while the lead
allows. A load stops the whole batch for `adapter_load_s`, and is charged to the tenant that causes it; not to a request
that resumes. Of the adapters that no running request uses, the one that was not used for the longest time leaves first.

A request that is held back is set aside in the policy, over many passes (HeldBack). A pass that may hold back no more
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_worker.engines.modelled.paged.kv_budget import PagedSequence
from gpu_worker.policies.adapters import AdapterTurns, HeldBack, LoadedAdapters
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest


class PagedAdapters:
    """`sequences`: the batch's own, waiting and running, by request id. `running`: in the order in which they
    entered."""

    def __init__(
        self,
        max_loras: int,
        policy: QueuePolicy,
        adapter_lead: float,
        sequences: Mapping[str, PagedSequence],
        running: Sequence[PagedSequence],
    ) -> None:
        self._max = max_loras
        self._policy = policy
        self._turns = AdapterTurns(policy, adapter_lead)
        self._sequences = sequences
        self._running = running
        self._loaded = LoadedAdapters(max_loras, self._holders)
        self._held_back = HeldBack(policy)

    def holders(self, request_id: str) -> list[list[str]]:
        """Return, for each adapter in use, the requests that use it; empty if the request finds a place."""
        wanted, holders = self._sequences[request_id].adapter, self._holders()
        return [] if wanted is None or wanted in holders or len(holders) < self._max else list(holders.values())

    def needs_no_load(self, request_id: str) -> bool:
        wanted = self._sequences[request_id].adapter
        return wanted is None or wanted in self._loaded or wanted in self._holders()

    def begin_pass(self) -> None:
        self._turns.begin_pass()
        holders = self._holders()
        self._held_back.begin_pass(holders, is_full=len(holders) >= self._max)

    def cancel(self, request_id: str) -> None:
        """Forget a waiting request that leaves."""
        self._held_back.forget(request_id)

    def hold_back(self, is_passed_over: Callable[[QueueRequest], bool]) -> bool:
        """Hold back the next requests that cannot have a place in this pass, or have to wait for another one's. Return
        False to end the pass. `is_passed_over`: whether no eviction makes a place for a request."""
        while held := [head for head in self._policy.heads() if not self._may_pass(head) or is_passed_over(head)]:
            for head in held:
                if not self._held_back.add(head.request_id, self._sequences[head.request_id].adapter):
                    return False
        return True

    def end_pass(self, entered: Sequence[PagedSequence]) -> int:
        """Load the adapters of the sequences that entered, and charge the loads. Return how many there are."""
        loads = 0
        for sequence in entered:
            if sequence.adapter is None:
                continue
            self._turns.on_entered(sequence.request)
            if self._loaded.use(sequence.adapter):
                loads += 1
                sequence.loads += 1
                if not sequence.preemptions:
                    self._policy.on_adapter_loaded(sequence.request.request_id)
        return loads

    def _may_pass(self, head: QueueRequest) -> bool:
        if self._sequences[head.request_id].adapter is None:
            return True
        return self._turns.may_pass(head, lacks_place=bool(self.holders(head.request_id)))

    def _holders(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for sequence in self._running:
            if sequence.adapter is not None:
                found.setdefault(sequence.adapter, []).append(sequence.request.request_id)
        return found
