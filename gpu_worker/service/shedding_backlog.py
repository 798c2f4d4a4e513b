"""What waits at this worker and how fast it serves, in service units: when to tell a client to come back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import floor

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.policies.tiers import Tier

WINDOW_S = 30.0
ENDS_LEARNED = 100
"""How much of its max_tokens a request uses is a mean that remembers about so many ends."""


@dataclass(slots=True, eq=False)
class _Request:
    tier: Tier
    output_tokens_max: int
    input_tokens: int = 0
    output_tokens: int = 0
    begun: bool = False


@dataclass(eq=False)
class Backlog:
    """Pure: told of each request by its id, with times that do not go back; bounded by the requests that are open.

    Waiting is what has no token yet: expected to take h(input, max_tokens x the part that others used of theirs). One
    that was evicted and waits again is not seen, since no event tells: the time told is the shorter for it.
    """

    service: ServiceFunction = WEIGHTED_TOKENS
    used: float = 1.0
    """Of max_tokens, by those that ended: 0 to 1."""
    _open: dict[str, _Request] = field(default_factory=dict)
    _served: deque[tuple[int, float]] = field(default_factory=deque)
    """(second, service units given in it)"""
    _ends: int = 0

    def arrived(self, name: str, tier: Tier, output_tokens_max: int) -> None:
        self._open[name] = _Request(tier, output_tokens_max)

    def started(self, name: str, input_tokens: int) -> None:
        self._open[name].input_tokens = input_tokens

    def generated(self, name: str, output_tokens: int, now_s: float) -> None:
        """So many tokens in all. The prompt counts as served with the first."""
        request = self._open[name]
        before = self.service(request.input_tokens, request.output_tokens) if request.begun else 0.0
        request.begun, request.output_tokens = True, max(output_tokens, request.output_tokens)
        self._add(now_s, self.service(request.input_tokens, request.output_tokens) - before)

    def left(self, name: str, *, whole: bool) -> None:
        """`whole`: generated to its own end, so that its length says something."""
        request = self._open.pop(name)
        if whole:
            self._ends = min(self._ends + 1, ENDS_LEARNED)
            self.used += (request.output_tokens / request.output_tokens_max - self.used) / self._ends

    def waiting(self) -> dict[Tier, float]:
        """Service units."""
        found = dict.fromkeys(Tier, 0.0)
        for request in self._open.values():
            if not request.begun:
                expected = max(1, round(request.output_tokens_max * self.used))
                found[request.tier] += self.service(request.input_tokens, expected)
        return found

    def service_per_s(self, now_s: float) -> float:
        """While it serves: over the seconds of the window in which anything was given; 0 where there are none."""
        self._forget(now_s)
        return sum(service for _, service in self._served) / max(len(self._served), 1)

    def _add(self, now_s: float, service: float) -> None:
        """By whole seconds: what is kept is bounded by the window."""
        self._forget(now_s)
        second = floor(now_s)
        if self._served and self._served[-1][0] >= second:
            second, before = self._served.pop()
            service += before
        self._served.append((second, service))

    def _forget(self, now_s: float) -> None:
        while self._served and self._served[0][0] <= now_s - WINDOW_S:
            self._served.popleft()
