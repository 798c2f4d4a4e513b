"""Load shedding: which tiers are refused while more urgent tiers miss their targets, and when they may return.

Source: docs/preemption-design.md, section 3.2. There are three levels:

    level   refuses                    is reached when
    0       no tier
    1       background                 premium or standard is at risk (slo.py)
    2       background and standard    `patience_s` after the last change of the level, premium is still at risk by the
                                       samples from then on

The level falls by one after `calm_s` without risk for the tiers that it protects: premium at level 2, premium and
standard at level 1. Premium and the system tier are never shed.

    Retry-After = max(backlog / rate, remaining calm), between retry_min_s and retry_max_s

`backlog`: service units waiting in this worker, in tiers at least as urgent as the refused one, because all of these go
first. `rate`: measured service units per second. Remaining calm: the shortest time after which the tier can return.

Hysteresis: a level rises at once but falls only after a calm interval, which starts only when the rolling window shows
no risk any more. If the level must rise again within twice the calm interval after it fell, the calm interval doubles,
up to `calm_max_s`, so that a permanent overload is tried less and less often. It returns to `calm_s` once level 0 has
lasted twice the calm interval. So in T seconds the level falls at most 2 + T / calm_s times, whatever the attainment
does.

Deviations: the source sheds both tiers at the same moment. It decides again at every request from the last hundred
records, so it accepts all tiers again after the first good record. It sends no Retry-After.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from dispatcher.policies.bounds import BoundedSettings, NotNegative, check_bounds
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.slo import SloMonitor

_SHED_FIRST = (Tier.BACKGROUND, Tier.STANDARD)
"""Level n sheds the first n of these tiers."""


@dataclass(frozen=True, slots=True)
class ShedSettings(BoundedSettings):
    """Times in seconds. `enabled`: False never sheds; the monitor still measures. `check_s`: the shortest time between
    two decisions. The other settings are explained at the head of this module.

    Raises ValueError for an impossible value.
    """

    enabled: bool = True
    patience_s: NotNegative = 10.0
    calm_s: NotNegative = 30.0
    calm_max_s: NotNegative = 300.0
    check_s: NotNegative = 0.5
    retry_min_s: NotNegative = 1.0
    retry_max_s: NotNegative = 600.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.calm_s <= self.calm_max_s:
            raise ValueError(f"calm_max_s must be at least calm_s, not {self.calm_max_s!r}")
        if not self.retry_min_s <= self.retry_max_s:
            raise ValueError(f"retry_max_s must be at least retry_min_s, not {self.retry_max_s!r}")


class Shedder:
    """Holds the current level. Only `observe` changes it, so call `observe` before the other methods."""

    def __init__(self, monitor: SloMonitor, settings: ShedSettings | None = None) -> None:
        self.monitor = monitor
        self.settings = settings or ShedSettings()
        self.level = 0
        self.changes = 0
        """How often the level rose or fell."""
        self._calm_s = self.settings.calm_s
        self._checked_s = -inf
        self._raised_s = -inf
        self._lowered_s = -inf
        self._at_risk_s = -inf
        """When a tier that the level protects was last at risk, or when the level was last changed."""

    def observe(self, now_s: float) -> None:
        """Raise or lower the level if that is due."""
        if not self.settings.enabled or now_s - self._checked_s < self.settings.check_s:
            return
        self._checked_s = now_s
        if self._must_rise(now_s):
            self._rise(now_s)
        elif self.level and self._protected_at_risk(now_s):
            self._at_risk_s = now_s
        elif self.level and now_s - self._at_risk_s >= self._calm_s:
            self._fall(now_s)
        elif not self.level and now_s - self._lowered_s >= 2 * self._calm_s:
            self._calm_s = self.settings.calm_s

    def sheds(self, tier: Tier) -> bool:
        return tier in _SHED_FIRST[: self.level]

    def retry_after_s(self, tier: Tier, waiting: Mapping[Tier, float], service_per_s: float, now_s: float) -> float:
        """Return the Retry-After of a refused request of this tier, in seconds.

        `waiting`: waiting service units, by tier. A backlog at rate 0 gives the longest time.
        """
        settings = self.settings
        backlog = sum(service for other, service in waiting.items() if other.rank <= tier.rank)
        served_s = backlog / service_per_s if service_per_s > 0 else inf if backlog else 0.0
        return min(max(served_s, self._remaining_calm_s(tier, now_s), settings.retry_min_s), settings.retry_max_s)

    def _must_rise(self, now_s: float) -> bool:
        if self.level == 0:
            return self.monitor.at_risk(Tier.PREMIUM, now_s) or self.monitor.at_risk(Tier.STANDARD, now_s)
        judged_from_s = max(self._raised_s, self._lowered_s) + self.settings.patience_s
        return (
            self.level == 1
            and now_s > judged_from_s
            and self.monitor.at_risk(Tier.PREMIUM, now_s, since_s=judged_from_s)
        )

    def _protected_at_risk(self, now_s: float) -> bool:
        """Return whether a tier that the current level protects is at risk."""
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

    def _remaining_calm_s(self, tier: Tier, now_s: float) -> float:
        """Return the shortest time until the tier can return: each level that sheds it must end with a calm
        interval."""
        if not self.sheds(tier):
            return 0.0
        levels = self.level - _SHED_FIRST.index(tier)
        return max(0.0, levels * self._calm_s - (now_s - self._at_risk_s))
