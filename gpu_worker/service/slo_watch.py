"""Measures the times of a worker's requests, and decides which requests it sheds because of them.

Times are measured at this worker, from the arrival of an order to the moment at which its tokens leave. They do not
contain the wait at the gate. The time in which a client does not read a line is subtracted, because a slow client must
not cause shedding.

Retry-After follows from the waiting work and the speed of this worker, in service units.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import floor

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Clock
from gpu_worker.engines.interface import EngineEvent, Finished, Started
from gpu_worker.policies.shedding import Shedder
from gpu_worker.policies.slo import SloMonitor

WINDOW_S = 30.0
_ENDS_LEARNED = 100
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
            self._ends = min(self._ends + 1, _ENDS_LEARNED)
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


@dataclass(eq=False)
class SloWatch:
    """Watches all requests of a worker.

    `sheds`, `expiries`: the numbers of requests that were shed, and that ended at their deadline, by tier.
    """

    clock: Clock
    shedder: Shedder = field(default_factory=lambda: Shedder(SloMonitor()))
    backlog: Backlog = field(default_factory=Backlog)
    sheds: Counter[Tier] = field(default_factory=Counter)
    expiries: Counter[Tier] = field(default_factory=Counter)
    _now_s: float = 0.0
    _reader_delay_s: dict[str, float] = field(default_factory=dict)
    """The seconds for which each open request has waited for its reader."""

    @property
    def monitor(self) -> SloMonitor:
        return self.shedder.monitor

    def now_s(self) -> float:
        """Return the clock's time. It never goes back, even if the clock is set back."""
        self._now_s = max(self._now_s, self.clock.now())
        return self._now_s

    def shed_retry_after_s(self, tier: Tier) -> float | None:
        """If the tier of an arriving request is shed, count it and return its Retry-After in seconds. Return None if it
        is accepted."""
        self.shedder.observe(self.now_s())
        if not self.shedder.sheds(tier):
            return None
        self.sheds[tier] += 1
        return self.retry_after_s(tier)

    def retry_after_s(self, tier: Tier) -> float:
        """Return the Retry-After of a request of this tier, in seconds."""
        now_s = self.now_s()
        return self.shedder.retry_after_s(tier, self.backlog.waiting(), self.backlog.service_per_s(now_s), now_s)

    def on_arrived(self, name: str, tier: Tier, output_tokens_max: int) -> None:
        self._reader_delay_s[name] = 0.0
        self.monitor.on_arrived(name, tier, self.now_s())
        self.backlog.on_arrived(name, tier, output_tokens_max)

    def reader_delayed(self, name: str, seconds: float) -> None:
        """Subtract the seconds that the request's reader needed to read a line."""
        if name in self._reader_delay_s:
            self._reader_delay_s[name] += max(0.0, seconds)

    def note(self, name: str, event: EngineEvent) -> None:
        """Record an event of a request. Ignore events after its end."""
        if name not in self._reader_delay_s:
            return
        now_s = self.now_s()
        at_s = now_s - self._reader_delay_s[name]
        if isinstance(event, Started):
            self.backlog.on_started(name, event.input_tokens)
        elif isinstance(event, Finished):
            self._record_finish(name, event, at_s)
        else:
            self.monitor.first_token(name, at_s)
            self.backlog.on_generated(name, event.output_tokens, now_s)
        self.shedder.observe(now_s)

    def on_left(self, name: str) -> None:
        """Close a request that ended without `Finished`. Do nothing if it is closed already."""
        if name in self._reader_delay_s:
            self.monitor.on_abandoned(name, self.now_s() - self._reader_delay_s.pop(name))
            self.backlog.on_left(name, whole=False)

    def _record_finish(self, name: str, finished: Finished, at_s: float) -> None:
        if finished.reason == "aborted":
            self.on_left(name)
            return
        del self._reader_delay_s[name]
        self.monitor.on_ended(name, at_s, finished.output_tokens)
        self.backlog.on_left(name, whole=True)
