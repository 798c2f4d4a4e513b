"""The figures of our scheduler on their way to the worker and to /metrics: plain values, and what is known of them.
Pure.

The scheduler's process makes reports (reports.py). A report has the figures of some tenants that changed
(policies/changed_tenants.py), and now and then the counts and gauges. vLLM encodes it in a thread of its own. The API
server's process keeps what the reports say (stats_logger.py), and the worker's process keeps what it reads from there
(engine.py): both in `KnownFigures`. The way from the server to the worker has only changes too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineStats
from gpu_worker.policies.changed_tenants import TierFigures
from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import (
    ObservedCosts,
    SchedulingGauges,
    SchedulingStats,
    TierGauges,
    largest_difference,
)

KNOWN_MAX = 20_000
"""Figures of a tenant in a tier that are kept; beyond it, those without a change for the longest time are forgotten.
The scheduler itself keeps those that are present, and in each tier 10,000 others."""
_COUNTS = tuple(each.name for each in fields(SchedulingStats) if each.name not in ("preemptions", "costs"))
_GAUGES = tuple(each.name for each in fields(SchedulingGauges) if each.name not in ("tiers", "counters", "difference"))


def make_report(tenants: Iterable[TierFigures], now: EngineStats | None = None) -> dict[str, Any]:
    """Return plain values. `now`: counts and gauges; its tenants and their counters are not used."""
    report: dict[str, Any] = {"tenants": [(tier, *figures) for tier, figures in tenants]}
    if now is not None:
        counts, gauges = now.counts, now.gauges
        report["now"] = {
            "waiting": now.waiting,
            "running": now.running,
            "kv_use": now.kv_use,
            "counts": {name: getattr(counts, name) for name in _COUNTS},
            "preemptions": [[*kind, count] for kind, count in counts.preemptions.items()],
            "costs": [[name, each.measured, each.predicted_s, each.measured_s] for name, each in counts.costs.items()],
            "gauges": {name: getattr(gauges, name) for name in _GAUGES},
            "tiers": [[tier, each.waiting, each.running] for tier, each in gauges.tiers.items()],
        }
    return report


_Key = tuple[str, str]
"""A tenant, and the name of a tier."""


class KnownFigures:
    """`version`: reports so far; each figure has the version of its last change."""

    def __init__(self) -> None:
        self.version = 0
        self._now: Mapping[str, Any] | None = None
        self._counts, self._gauges = SchedulingStats(), SchedulingGauges()
        self._received: OrderedDict[_Key, TenantService] = OrderedDict()
        """The one that changed last is last."""
        self._counters: dict[_Key, float] = {}
        """A tenant has one while it has waiting requests."""
        self._versions: dict[_Key, int] = {}
        self._tenants: dict[str, TenantService] = {}
        """The sums over the tiers."""

    def apply(self, report: Mapping[str, Any]) -> None:
        """Raises ValueError for anything but a report."""
        try:
            tenants = [_read_tenant(*each) for each in report["tenants"]]
            if (now := report.get("now")) is not None:
                self._counts, self._gauges, self._now = _counts(now), _gauges(now), now
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a report of the scheduler: {error!r}") from None
        self.version += 1
        for key, received, counter in tenants:
            self._learn(key, received, counter)

    def changes_since(self, version: int) -> dict[str, Any] | None:
        """Return a report of what changed after a version, with the present version; None before the first report."""
        if self._now is None:
            return None
        if version > self.version:  # of a server before this one
            version = 0
        changed = []
        for key in reversed(self._received):
            if self._versions[key] <= version:
                break
            (tenant, tier), got = key, self._received[key]
            figures = tenant, got.input_tokens, got.output_tokens, got.service, self._counters.get(key)
            changed.append((tier, *figures))
        return {"tenants": changed[::-1], "now": self._now, "version": self.version}

    def stats(self) -> EngineStats | None:
        """Return the stats as they are known, with a view of the tenants; None before the first report."""
        if self._now is None:
            return None
        by_tier: dict[str, list[float]] = {}
        highest: dict[str, float] = {}
        for (tenant, tier), counter in self._counters.items():
            highest[tenant] = max(counter, highest.get(tenant, counter))
            by_tier.setdefault(tier, []).append(counter)
        gauges = self._gauges.with_counters(highest, largest_difference(by_tier.values()))
        sizes = self._now["waiting"], self._now["running"], self._now["kv_use"]
        return EngineStats(*sizes, self._tenants, self._counts, gauges)

    def forget(self, tenant: str) -> None:
        """Forget a tenant, until it changes again."""
        if tenant in self._tenants:
            for tier in Tier:
                self._forget((tenant, tier.value))

    def _learn(self, key: _Key, received: TenantService, counter: float | None) -> None:
        self._received[key] = received
        self._received.move_to_end(key)
        self._versions[key] = self.version
        if counter is None:
            self._counters.pop(key, None)
        else:
            self._counters[key] = counter
        self._add_up(key[0])
        if len(self._received) > KNOWN_MAX:
            self._forget(next(iter(self._received)))

    def _forget(self, key: _Key) -> None:
        if self._received.pop(key, None) is not None:
            del self._versions[key]
            self._counters.pop(key, None)
            self._add_up(key[0])

    def _add_up(self, tenant: str) -> None:
        found = [got for tier in Tier if (got := self._received.get((tenant, tier.value))) is not None]
        if found:
            self._tenants[tenant] = sum(found[1:], found[0])
        else:
            self._tenants.pop(tenant, None)


def _read_tenant(
    tier: str, tenant: str, input_tokens: int, output_tokens: int, service: float, counter: float | None
) -> tuple[_Key, TenantService, float | None]:
    return (tenant, tier), TenantService(input_tokens, output_tokens, service), counter


def _counts(now: Mapping[str, Any]) -> SchedulingStats:
    preemptions = Counter({(Strategy(strategy), Tier(tier)): count for strategy, tier, count in now["preemptions"]})
    costs = {Strategy(name): ObservedCosts(*seen) for name, *seen in now["costs"]}
    return SchedulingStats(preemptions=preemptions, costs=costs, **now["counts"])


def _gauges(now: Mapping[str, Any]) -> SchedulingGauges:
    tiers = {Tier(name): TierGauges(waiting, running) for name, waiting, running in now["tiers"]}
    return SchedulingGauges(tiers=tiers, **now["gauges"])
