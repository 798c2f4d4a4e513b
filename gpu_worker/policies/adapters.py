"""Counts which LoRA adapters an engine's device holds. A load is charged to the tenant that causes it.

A load stops the whole batch while the adapter is copied, so it costs the other tenants time. The policies charge it as
`adapter_load_tokens` input tokens (tiers.py). A request that resumes after a preemption pays for no load: its tenant
did not cause it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain, islice

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest

PASSES_MAX = 256
"""Requests with adapters in use that one request lets pass at most, where no lead bounds it. More would make a tenant
with many adapters empty its places more often."""


class AdapterTurns:
    """Bounds how long a request waits for the place of its adapter.

    While it waits, later requests with adapters that are loaded pass it: a place is used as long as it is wanted. But
    then it could wait for ever. So a request of a less urgent tier, or of a tenant of its tier that leads its tenant by
    more than `adapter_lead`, passes it no more: the places become free when their requests end. Of its own tenant, and
    where the policy has no counters, PASSES_MAX requests pass it. A request without an adapter always passes it,
    because it uses no place; so do those of more urgent tiers.
    """

    def __init__(self, policy: QueuePolicy, adapter_lead: float) -> None:
        self._policy = policy
        self._lead_max = adapter_lead
        self._first: QueueRequest | None = None
        self._counter: float | None = None
        """The counter of its tenant before the engine took it out of the queue to skip it, which charges its prompt."""
        self._passed: tuple[str, int] = "", 0
        """The last request that was passed by others without regard to a lead, and how often."""

    def begin_pass(self) -> None:
        self._first = None

    def on_entered(self, request: QueueRequest) -> None:
        """Count a request with an adapter that this pass admitted."""
        first = self._first
        if first is not None and request.request_id != first.request_id and self._ignores_lead(request, first):
            self._passed = first.request_id, self._passes_of(first) + 1

    def may_pass(self, request: QueueRequest, *, lacks_place: bool) -> bool:
        """Return whether a request with an adapter may enter before the first one in this pass that lacks a place.
        `lacks_place`: whether it lacks one itself; then the engine will skip it."""
        first = self._first
        if first is None:
            if lacks_place:
                self._first, self._counter = request, self._policy.counter(request.tenant)
            return True
        if request.request_id == first.request_id:
            return True
        if request.tier is not first.tier:
            return request.tier.rank < first.tier.rank
        if self._ignores_lead(request, first):
            return self._passes_of(first) < PASSES_MAX
        return (self._policy.counter(request.tenant) or 0.0) - (self._counter or 0.0) <= self._lead_max

    def _ignores_lead(self, request: QueueRequest, first: QueueRequest) -> bool:
        """Return whether a request of the same tier passes by count: its tenant has no lead over that of the first."""
        if request.tier is not first.tier:
            return False
        return request.tenant == first.tenant or self._policy.counter(request.tenant) is None

    def _passes_of(self, first: QueueRequest) -> int:
        return self._passed[1] if self._passed[0] == first.request_id else 0


HELD_BACK_MAX = 32
"""Requests that a pass of admissions sets aside at most."""
_BACK_MAX = 16
"""Requests that come back in a pass at most, because they may find a place now: fewer than a pass sets aside, so that a
pass gets on."""
_AGAIN_MAX = 4
"""Requests that come back in any pass: time alone changes ranks and leads."""


class HeldBack:
    """Requests that cannot have the place of their adapter now. The policy has set them aside, over many passes.

    So what a pass costs does not grow with the queue: it sets aside at most HELD_BACK_MAX and admits no more then, and
    the next pass goes on behind them. A request that needs no place is reached after n / (HELD_BACK_MAX - _BACK_MAX -
    _AGAIN_MAX - 1) passes at the latest, if n that lack one go before it. One that was set aside comes back

    - in the next pass, if it was the first of its pass: the others wait for its turn (AdapterTurns);
    - when its adapter is in use or a place is free, up to _BACK_MAX in a pass, the earliest set aside first;
    - else when its turn comes, _AGAIN_MAX in a pass.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._aside: dict[str, Hashable] = {}
        """Their adapters, the earliest set aside first."""
        self._of_adapter: dict[Hashable, dict[str, None]] = {}
        self._first: str | None = None
        self._left = HELD_BACK_MAX

    def begin_pass(self, in_use: Collection[Hashable], *, is_full: bool) -> None:
        """Take back what may find a place now. `is_full`: no place is free for another adapter than those `in_use`."""
        self._left = HELD_BACK_MAX
        if not self._aside:
            return
        with_place = chain.from_iterable(self._of_adapter.get(adapter, ()) for adapter in in_use)
        back = [*islice(with_place if is_full else iter(self._aside), _BACK_MAX), *islice(self._aside, _AGAIN_MAX)]
        for request_id in dict.fromkeys(back if self._first is None else (*back, self._first)):
            self.forget(request_id)
            self._policy.take_back(request_id)
        self._first = None

    def add(self, request_id: str, adapter: Hashable) -> bool:
        """Set a waiting request aside. Return False, and do nothing, if this pass may set aside no more."""
        if not self._left:
            return False
        if self._left == HELD_BACK_MAX:
            self._first = request_id
        self._left -= 1
        self._aside[request_id] = adapter
        self._of_adapter.setdefault(adapter, {})[request_id] = None
        self._policy.set_aside(request_id)
        return True

    def forget(self, request_id: str) -> None:
        """Forget a request that leaves, or comes back."""
        if request_id not in self._aside:
            return
        adapter = self._aside.pop(request_id)
        del self._of_adapter[adapter][request_id]
        if not self._of_adapter[adapter]:
            del self._of_adapter[adapter]
        if request_id == self._first:
            self._first = None


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
        self._in_use_now: frozenset[Hashable] | None = None
        """Once it is known; None after any change."""

    @property
    def in_use(self) -> frozenset[Hashable]:
        if self._in_use_now is None:
            self._in_use_now = frozenset(self._in_use())
        return self._in_use_now

    @property
    def is_full(self) -> bool:
        """Whether running requests use all places."""
        return len(self.in_use) >= self._capacity

    def lacks_place(self, adapter: Hashable) -> bool:
        """Return whether running requests use all places, and none uses this adapter."""
        return adapter not in self.in_use and self.is_full

    def needs_load(self, adapter: Hashable) -> bool:
        return adapter not in self._loaded and adapter not in self.in_use

    def forget_in_use(self) -> None:
        """Count the adapters in use again: the running requests may have changed."""
        self._in_use_now = None

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
