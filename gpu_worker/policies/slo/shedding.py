"""Which tiers are turned away while those above them are not served as promised, and when they may come back.

Source: the practitioner's design for tiered preemption, section 3.2. Levels, each with all that is below it:

    0   nobody is shed
    1   background     premium or standard is at risk (slo.py)
    2   standard too   premium is at risk still, `patience_s` after the level was taken, by samples from then on

One level down again after `calm_s` without risk to those for whom the level is: premium at level 2, premium and
standard at level 1. Premium and the system are never shed.

    Retry-After = max(backlog / rate, what is left of the calm), between 1 s and 600 s

`backlog`: service units that wait here in tiers at least as urgent as the refused one: all of that goes before it.
`rate`: service units a second, measured. What is left of the calm: the least time until the tier can be let in again.

Hysteresis: raised at once, lowered only after a calm stretch, which begins only when the rolling window holds no risk
any more. A level that has to be raised again within twice the calm after it was lowered doubles the calm, up to
`calm_max_s`, so a load that is too high for good is tried less and less often. A level that was lowered and held that
long takes it back to `calm_s`. So, however attainment moves, over T seconds at most 2 + T / calm_s times is a level
lowered.

Deviations: the source sheds both tiers at the same moment, decides anew at every request from the last hundred records,
and so lets everybody in again with the first good one; it tells nobody when to come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.slo.monitor import SloMonitor

SHED_FIRST = (Tier.BACKGROUND, Tier.STANDARD)
"""At level n the first n of these."""


@dataclass(frozen=True, slots=True)
class ShedSettings:
    """Seconds. `enabled`: False sheds nobody, and leaves the monitor its figures. `check_s`: how often it is decided at
    most.

    Raises ValueError for what cannot be.
    """

    enabled: bool = True
    patience_s: float = 10.0
    calm_s: float = 30.0
    calm_max_s: float = 300.0
    check_s: float = 0.5
    retry_min_s: float = 1.0
    retry_max_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("patience_s", "calm_s", "check_s", "retry_min_s"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a number that is not negative, not {getattr(self, name)!r}")
        if not self.calm_s <= self.calm_max_s < inf:
            raise ValueError(f"calm_max_s must be at least calm_s, not {self.calm_max_s!r}")
        if not self.retry_min_s <= self.retry_max_s < inf:
            raise ValueError(f"retry_max_s must be at least retry_min_s, not {self.retry_max_s!r}")


class Shedder:
    """`observe` before asking anything: it alone moves the level."""

    def __init__(self, monitor: SloMonitor, settings: ShedSettings | None = None) -> None:
        self.monitor = monitor
        self.settings = settings or ShedSettings()
        self.level = 0
        self.changes = 0
        """How often the level was raised or lowered."""
        self._calm_s = self.settings.calm_s
        self._checked_s = -inf
        self._raised_s = -inf
        self._lowered_s = -inf
        self._at_risk_s = -inf
        """When those for whom the level is were last at risk, or when it was taken."""

    def observe(self, now_s: float) -> None:
        if not self.settings.enabled or now_s - self._checked_s < self.settings.check_s:
            return
        self._checked_s = now_s
        if self._must_rise(now_s):
            self._rise(now_s)
        elif self.level and self._at_risk(now_s):
            self._at_risk_s = now_s
        elif self.level and now_s - self._at_risk_s >= self._calm_s:
            self._fall(now_s)
        elif not self.level and now_s - self._lowered_s >= 2 * self._calm_s:
            self._calm_s = self.settings.calm_s

    def sheds(self, tier: Tier) -> bool:
        return tier in SHED_FIRST[: self.level]

    def retry_after_s(self, tier: Tier, waiting: Mapping[Tier, float], service_per_s: float, now_s: float) -> float:
        """Of a request of this tier that is shed. `waiting`: service units, by tier. With a rate of 0 nothing is served
        at all, and the longest time is told."""
        settings = self.settings
        backlog = sum(service for other, service in waiting.items() if other.rank <= tier.rank)
        served_s = backlog / service_per_s if service_per_s > 0 else inf if backlog else 0.0
        return min(max(served_s, self._let_in_after_s(tier, now_s), settings.retry_min_s), settings.retry_max_s)

    def _must_rise(self, now_s: float) -> bool:
        if self.level == 0:
            return self.monitor.at_risk(Tier.PREMIUM, now_s) or self.monitor.at_risk(Tier.STANDARD, now_s)
        judged_s = max(self._raised_s, self._lowered_s) + self.settings.patience_s
        return self.level == 1 and now_s > judged_s and self.monitor.at_risk(Tier.PREMIUM, now_s, since_s=judged_s)

    def _at_risk(self, now_s: float) -> bool:
        """Of those for whom this level is."""
        if self.monitor.at_risk(Tier.PREMIUM, now_s):
            return True
        return self.level == 1 and self.monitor.at_risk(Tier.STANDARD, now_s)

    def _rise(self, now_s: float) -> None:
        relapsed = self._lowered_s > self._raised_s and now_s - self._lowered_s < 2 * self._calm_s
        if relapsed:
            self._calm_s = min(2 * self._calm_s, self.settings.calm_max_s)
        self.level += 1
        self.changes += 1
        self._raised_s = self._at_risk_s = now_s

    def _fall(self, now_s: float) -> None:
        self.level -= 1
        self.changes += 1
        self._lowered_s = self._at_risk_s = now_s

    def _let_in_after_s(self, tier: Tier, now_s: float) -> float:
        """At the soonest: every level above the one that lets it in takes a calm stretch."""
        if not self.sheds(tier):
            return 0.0
        levels = self.level - SHED_FIRST.index(tier)
        return max(0.0, levels * self._calm_s - (now_s - self._at_risk_s))
