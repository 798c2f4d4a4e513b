"""LoRA adapters of the paged model: places on the device, loads, and the requests that wait for a place.

The rules are those of our scheduler inside vLLM (policies/adapters.py): at most `max_loras` adapters are in use at
once; a request whose adapter has no place is held back in a pass of admissions, and later ones pass it while the lead
allows. A load stops the whole batch for `adapter_load_s`, and is charged to the tenant that causes it; not to a request
that resumes. Of the adapters that no running request uses, the one that was not used for the longest time leaves first.

A request that is held back is admitted in the policy for the time of the pass, so that the policy shows what comes
after it, and its admission is undone at the end of the pass. A pass holds at most HELD_BACK_MAX back and ends then:
otherwise a step would take as long as the queue is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_worker.engines.modelled.paged.kv_budget import PagedSequence
from gpu_worker.policies.adapters import AdapterTurns, LoadedAdapters
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest

HELD_BACK_MAX = 32


class PagedAdapters:
    """`sequences`: the batch's own, waiting and running, by request id. `running`: in the order in which they
    entered."""

    def __init__(
        self,
        max_loras: int,
        turns: AdapterTurns,
        sequences: Mapping[str, PagedSequence],
        running: Sequence[PagedSequence],
    ) -> None:
        self._max = max_loras
        self._turns = turns
        self._sequences = sequences
        self._running = running
        self._loaded = LoadedAdapters(max_loras, self._holders)
        self._held_back: list[str] = []

    def holders(self, request_id: str) -> list[list[str]]:
        """Return, for each adapter in use, the requests that use it; empty if the request finds a place."""
        wanted, holders = self._sequences[request_id].adapter, self._holders()
        return [] if wanted is None or wanted in holders or len(holders) < self._max else list(holders.values())

    def needs_no_load(self, request_id: str) -> bool:
        wanted = self._sequences[request_id].adapter
        return wanted is None or wanted in self._loaded or wanted in self._holders()

    def begin_pass(self) -> None:
        self._turns.begin_pass()

    def hold_back(self, policy: QueuePolicy, is_passed_over: Callable[[QueueRequest], bool]) -> bool:
        """Hold back the next requests that cannot have a place in this pass, or have to wait for another one's. Return
        False to end the pass. `is_passed_over`: whether no eviction makes a place for a request."""
        while held := [head for head in policy.heads() if not self._may_pass(head) or is_passed_over(head)]:
            if len(self._held_back) >= HELD_BACK_MAX:
                return False
            for head in held:
                policy.admit(head.request_id)
                self._held_back.append(head.request_id)
        return True

    def end_pass(self, policy: QueuePolicy, entered: Sequence[PagedSequence]) -> int:
        """Undo what was held back, load the adapters of the sequences that entered, and charge the loads. Return how
        many there are."""
        for request_id in reversed(self._held_back):
            policy.undo_admit(request_id)
        self._held_back.clear()
        loads = 0
        for sequence in entered:
            if sequence.adapter is not None and self._loaded.use(sequence.adapter):
                loads += 1
                sequence.loads += 1
                if not sequence.preemptions:
                    policy.on_adapter_loaded(sequence.request.request_id)
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
