"""Locality: within the tenant that a policy chose, the request with the longest cached prefix goes first.

Source: Locality-aware Fair Scheduling in LLM Serving (arXiv 2501.14312) has the aim, a cache that is used well under
fair shares. Its DLPM chooses among the tenants with deficit left (prefix_baselines.py). Here the policy's tenant is not
questioned: VTC's order of tenants, its charges and its bounds stay as they are (vtc.py). Lengths are in tokens.

    candidates    the first WINDOW waiting requests of the chosen tenant, in the order of arrival
    next          the first candidate that was overtaken OVERTAKEN_MAX times, if any; else the candidate with the most
                  prompt tokens in the prefix cache; of equal ones the first to arrive

Invariant: at most OVERTAKEN_MAX later requests of its tenant are admitted before a request. An admission of a candidate
overtakes all candidates before it. So an earlier candidate was overtaken at least as often as a later one, unless it
ran meanwhile, and the first one at the limit goes next. Requests of other tenants are as far from a request as without
locality.

Cost: an engine's lookup follows the blocks of a prompt, and may be slow beside a step. So each request is looked up at
most once in a pass of admissions, and at most LOOKUPS_MAX requests are; the others count as not cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

WINDOW = 64
OVERTAKEN_MAX = 64
LOOKUPS_MAX = 128


class Candidate(Protocol):
    """A waiting request, as its policy keeps it (RequestRecord)."""

    @property
    def request_id(self) -> str: ...
    @property
    def place(self) -> int: ...
    @property
    def overtaken(self) -> int: ...


C = TypeVar("C", bound=Candidate)


class PrefixLookups:
    """An engine's lookups of cached prefixes during a pass of admissions.

    `cached_tokens`: returns how many tokens of a waiting request's prompt are in the prefix cache now.
    """

    def __init__(
        self,
        cached_tokens: Callable[[str], int],
        *,
        window: int = WINDOW,
        overtaken_max: int = OVERTAKEN_MAX,
        lookups_max: int = LOOKUPS_MAX,
    ) -> None:
        self.window = window
        self._cached_tokens = cached_tokens
        self._overtaken_max = overtaken_max
        self._lookups_max = lookups_max
        self._found: dict[str, int] = {}
        self.passes = 0

    def begin_pass(self) -> None:
        """Forget what was found: the cache may have changed."""
        self._found.clear()
        self.passes += 1

    def tokens(self, request_id: str) -> int:
        """Return the request's cached prompt tokens; 0 if this pass has used up its lookups."""
        found = self._found.get(request_id)
        if found is None:
            if len(self._found) >= self._lookups_max:
                return 0
            found = self._found[request_id] = self._cached_tokens(request_id)
        return found

    def choose(self, candidates: Sequence[C]) -> C:
        """Return the next of a tenant's first requests. `candidates`: not empty, in the order of arrival."""
        due = next((record for record in candidates if record.overtaken >= self._overtaken_max), None)
        return due or self.longest(candidates)

    def longest(self, candidates: Sequence[C]) -> C:
        """Return the candidate with the longest cached prefix; of equal ones the first to arrive."""
        return max(candidates, key=lambda record: (self.tokens(record.request_id), -record.place))
