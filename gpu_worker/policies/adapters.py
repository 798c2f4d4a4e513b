"""Counts which LoRA adapters an engine's device holds. A load is charged to the tenant that causes it.

A load stops the whole batch while the adapter is copied, so it costs the other tenants time. The policies charge it as
`adapter_load_tokens` input tokens (tiers.py). A request that resumes after a preemption pays for no load: its tenant
did not cause it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable


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
