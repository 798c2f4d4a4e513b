"""Measures the waiting work and the speed of this worker, in service units. Retry-After follows from both."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import floor

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.policies.tiers import Tier

WINDOW_S = 30.0
ENDS_LEARNED = 100
"""The mean of output tokens / max_tokens is over about this many finished requests, the last ones."""


@dataclass(slots=True, eq=False)
class _Request:
    tier: Tier
    output_tokens_max: int
    input_tokens: int = 0
    output_tokens: int = 0
    begun: bool = False


@dataclass(eq=False)
class Backlog:
    """The open requests and the last served ones. Pure. Times do not go back. Memory is bounded by the open requests.

    A request counts as waiting until its first token. Its expected service is h(input, used x max_tokens), where `used`
    is the part of max_tokens that finished requests generated. A request that was evicted and waits again does not
    count as waiting, because no event reports this. Then the estimate is too low.
    """

    service: ServiceFunction = WEIGHTED_TOKENS
    used: float = 1.0
    """The mean of output tokens / max_tokens of finished requests, 0 to 1."""
    _open: dict[str, _Request] = field(default_factory=dict)
    _served: deque[tuple[int, float]] = field(default_factory=deque)
    """Pairs of a second and the service units that were served in it."""
    _ends: int = 0

    def on_arrived(self, name: str, tier: Tier, output_tokens_max: int) -> None:
        self._open[name] = _Request(tier, output_tokens_max)

    def on_started(self, name: str, input_tokens: int) -> None:
        self._open[name].input_tokens = input_tokens

    def on_generated(self, name: str, output_tokens: int, now_s: float) -> None:
        """Record that the request has `output_tokens` in total. The prompt counts as served with the first token."""
        request = self._open[name]
        before = self.service(request.input_tokens, request.output_tokens) if request.begun else 0.0
        request.begun, request.output_tokens = True, max(output_tokens, request.output_tokens)
        self._add(now_s, self.service(request.input_tokens, request.output_tokens) - before)

    def on_left(self, name: str, *, whole: bool) -> None:
        """Close a request. `whole`: it was not cut off, so its length counts for `used`."""
        request = self._open.pop(name)
        if whole and request.output_tokens_max:  # embeddings have no output
            self._ends = min(self._ends + 1, ENDS_LEARNED)
            self.used += (request.output_tokens / request.output_tokens_max - self.used) / self._ends

    def waiting(self) -> dict[Tier, float]:
        """Return the service units that wait, by tier."""
        found = dict.fromkeys(Tier, 0.0)
        for request in self._open.values():
            if not request.begun:
                expected = min(max(1, round(request.output_tokens_max * self.used)), request.output_tokens_max)
                found[request.tier] += self.service(request.input_tokens, expected)
        return found

    def service_per_s(self, now_s: float) -> float:
        """Return the mean service a second, over those seconds of the window with any service; 0 if there are none."""
        self._forget(now_s)
        return sum(service for _, service in self._served) / max(len(self._served), 1)

    def _add(self, now_s: float, service: float) -> None:
        """Add to the current whole second, so that memory is bounded by the window."""
        self._forget(now_s)
        second = floor(now_s)
        if self._served and self._served[-1][0] >= second:
            second, before = self._served.pop()
            service += before
        self._served.append((second, service))

    def _forget(self, now_s: float) -> None:
        while self._served and self._served[0][0] <= now_s - WINDOW_S:
            self._served.popleft()
