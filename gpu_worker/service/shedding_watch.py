"""What a worker sees of its requests' times, and whom it turns away for that.

Times are this worker's: from when an order came in to its tokens as they leave. What a request waited at the gate
before is the gate's to watch. While a reader lets a token wait, no time passes here for its request: a slow client is
no slow engine, and must not have others shed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dispatcher.policies.tiers import Tier
from dispatcher.ports import Clock
from gpu_worker.engines.interface import EngineEvent, Finished, Started
from gpu_worker.policies.slo.monitor import SloMonitor
from gpu_worker.policies.slo.shedding import Shedder
from gpu_worker.service.shedding_backlog import Backlog


@dataclass(eq=False)
class Watch:
    """`sheds`, `expiries`: how many, by tier."""

    clock: Clock
    shedder: Shedder = field(default_factory=lambda: Shedder(SloMonitor()))
    backlog: Backlog = field(default_factory=Backlog)
    sheds: Counter[Tier] = field(default_factory=Counter)
    expiries: Counter[Tier] = field(default_factory=Counter)
    _now_s: float = 0.0
    _held_s: dict[str, float] = field(default_factory=dict)

    @property
    def monitor(self) -> SloMonitor:
        return self.shedder.monitor

    def now_s(self) -> float:
        """The clock's, which may be set back; this does not go back."""
        self._now_s = max(self._now_s, self.clock.now())
        return self._now_s

    def turned_away_s(self, tier: Tier) -> float | None:
        """When a request of this tier may come back; None: it is not shed."""
        now_s = self.now_s()
        self.shedder.observe(now_s)
        if not self.shedder.sheds(tier):
            return None
        self.sheds[tier] += 1
        return self.shedder.retry_after_s(tier, self.backlog.waiting(), self.backlog.service_per_s(now_s), now_s)

    def come_back_s(self, tier: Tier) -> float:
        """The same for one that was ended to make room for others."""
        now_s = self.now_s()
        return self.shedder.retry_after_s(tier, self.backlog.waiting(), self.backlog.service_per_s(now_s), now_s)

    def arrived(self, name: str, tier: Tier, output_tokens_max: int) -> None:
        self._held_s[name] = 0.0
        self.monitor.arrived(name, tier, self.now_s())
        self.backlog.arrived(name, tier, output_tokens_max)

    def held(self, name: str, seconds: float) -> None:
        """Its reader took so long to take a line."""
        if name in self._held_s:
            self._held_s[name] += max(0.0, seconds)

    def noted(self, name: str, event: EngineEvent) -> None:
        """Nothing after its end counts."""
        if name not in self._held_s:
            return
        now_s = self.now_s()
        at_s = now_s - self._held_s[name]
        if isinstance(event, Started):
            self.backlog.started(name, event.input_tokens)
        elif isinstance(event, Finished):
            self._gone(name, event, at_s)
        else:
            self.monitor.first_token(name, at_s)
            self.backlog.generated(name, event.output_tokens, now_s)
        self.shedder.observe(now_s)

    def left(self, name: str) -> None:
        """It ended otherwise, or has ended already."""
        if name in self._held_s:
            self.monitor.abandoned(name, self.now_s() - self._held_s.pop(name))
            self.backlog.left(name, whole=False)

    def _gone(self, name: str, finished: Finished, at_s: float) -> None:
        if finished.reason == "aborted":
            self.left(name)
            return
        del self._held_s[name]
        self.monitor.ended(name, at_s, finished.output_tokens)
        self.backlog.left(name, whole=True)
