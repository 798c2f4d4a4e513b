"""Measures the times of a worker's requests, and decides which requests it sheds because of them.

Times are measured at this worker, from the arrival of an order to the moment at which its tokens leave. They do not
contain the wait at the gate. The time in which a client does not read a line is subtracted, because a slow client must
not cause shedding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dispatcher.policies.tiers import Tier
from dispatcher.ports import Clock
from gpu_worker.engines.interface import EngineEvent, Finished, Started
from gpu_worker.policies.shedding import Shedder
from gpu_worker.policies.slo import SloMonitor
from gpu_worker.service.slo.backlog import Backlog


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
