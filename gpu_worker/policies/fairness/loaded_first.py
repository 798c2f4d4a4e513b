"""Loaded adapters first: within the tenant that a policy chose, a request whose LoRA adapter is loaded goes first.

It is locality (locality.py) for adapters: a tenant that cycles through more adapters than the device holds has its
requests in groups of one adapter, and pays for fewer loads. The policy's tenant is not questioned, and neither are its
charges and bounds.

    candidates    as in locality.py: the first WINDOW waiting requests of the chosen tenant
    next          the first candidate that was overtaken OVERTAKEN_MAX times, if any; else the first of those that need
                  no load; with locality, the one of these with the longest cached prefix; else as without this rule

Invariant: that of locality.py, at most OVERTAKEN_MAX later requests of its tenant are admitted before a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_worker.policies.fairness.locality import OVERTAKEN_MAX, WINDOW, C, PrefixLookups


class LoadedFirst(PrefixLookups):
    """`needs_no_load`: whether a waiting request has no adapter, or one that is loaded or in use now. The others: as in
    PrefixLookups."""

    def __init__(
        self,
        needs_no_load: Callable[[str], bool],
        cached_tokens: Callable[[str], int] = lambda _: 0,
        *,
        window: int = WINDOW,
        overtaken_max: int = OVERTAKEN_MAX,
    ) -> None:
        super().__init__(cached_tokens, window=window, overtaken_max=overtaken_max)
        self._needs_no_load = needs_no_load

    def longest(self, candidates: Sequence[C]) -> C:
        loaded = [record for record in candidates if self._needs_no_load(record.request_id)]
        return super().longest(loaded or candidates)
