"""Counts which LoRA adapters an engine's device holds. A load is charged to the tenant that causes it.

A load stops the whole batch while the adapter is copied, so it costs the other tenants time. The policies charge it as
`adapter_load_tokens` input tokens (tiers.py). A request that resumes after a preemption pays for no load: its tenant
did not cause it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest


class AdapterTurns:
    """Bounds how long a request waits for the place of its adapter.

    While it waits, later requests with adapters that are loaded pass it: a place is used as long as it is wanted. But
    then it could wait for ever. So a request of a less urgent tier, or of a tenant of its tier that leads its tenant by
    more than `adapter_lead`, passes it no more: the places become free when their requests end. A request without an
    adapter always passes it, because it uses no place; so do those of its own tenant.
    """

    def __init__(self, policy: QueuePolicy, adapter_lead: float) -> None:
        self._policy = policy
        self._lead_max = adapter_lead
        self._first: QueueRequest | None = None
        self._counter: float | None = None
        """The counter of its tenant before the engine took it out of the queue to skip it, which charges its prompt."""

    def begin_pass(self) -> None:
        self._first = None

    def may_pass(self, request: QueueRequest, *, lacks_place: bool) -> bool:
        """Return whether a request with an adapter may enter before the first one in this pass that lacks a place.
        `lacks_place`: whether it lacks one itself; then the engine will skip it."""
        first = self._first
        if first is None:
            if lacks_place:
                self._first, self._counter = request, self._policy.counter(request.tenant)
            return True
        if request.tier is not first.tier:
            return request.tier.rank < first.tier.rank
        ahead = self._policy.counter(request.tenant)
        return request.tenant == first.tenant or ahead is None or ahead - (self._counter or 0.0) <= self._lead_max


class LoadedAdapters:
    """The adapters of the device, the one that was not used for the longest time first.

    `capacity`: how many it holds. `in_use`: those of the running requests, which stay. An engine counts the use of
    every step, and this class that of admissions and loads: of two adapters that no request uses, it may take the wrong
    one for loaded.
    """

    def __init__(self, capacity: int, in_use: Callable[[], Iterable[Hashable]]) -> None:
        self._capacity = capacity
        self._in_use = in_use
        self._loaded: dict[Hashable, None] = {}

    def lacks_place(self, adapter: Hashable) -> bool:
        """Return whether running requests use all places, and none uses this adapter."""
        in_use = set(self._in_use())
        return adapter not in in_use and len(in_use) >= self._capacity

    def __contains__(self, adapter: Hashable) -> bool:
        return adapter in self._loaded

    def use(self, adapter: Hashable) -> bool:
        """Note that a request with this adapter runs now. Return whether the adapter is loaded for it."""
        is_new = adapter not in self._loaded
        self._touch(adapter)
        if is_new and len(self._loaded) > self._capacity:
            for each in self._in_use():
                self._touch(each)
            self._touch(adapter)
            del self._loaded[next(iter(self._loaded))]
        return is_new

    def _touch(self, adapter: Hashable) -> None:
        self._loaded.pop(adapter, None)
        self._loaded[adapter] = None
