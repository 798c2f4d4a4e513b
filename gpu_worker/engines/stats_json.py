"""An engine's stats as JSON and back, for engines that run in a process of their own."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineStats
from gpu_worker.policies.fairness.accounting.tenant_service import TenantService
from gpu_worker.policies.preemption.costs import Strategy
from gpu_worker.policies.scheduling_stats import ObservedCosts, SchedulingGauges, SchedulingStats, TierGauges


def stats_to_json(stats: EngineStats) -> str:
    told = asdict(stats)
    told["figures"]["preemptions"] = [
        [strategy, tier, count] for (strategy, tier), count in stats.figures.preemptions.items()
    ]
    return json.dumps(told, separators=(",", ":"))


def stats_from_json(text: str) -> EngineStats:
    """Raises ValueError for what is none."""
    try:
        told: dict[str, Any] = json.loads(text)
        figures, now = dict(told["figures"]), dict(told["now"])
        figures["preemptions"] = Counter(
            {(Strategy(strategy), Tier(tier)): count for strategy, tier, count in figures["preemptions"]}
        )
        figures["costs"] = {Strategy(name): ObservedCosts(**seen) for name, seen in figures["costs"].items()}
        now["tiers"] = {Tier(name): TierGauges(**tier) for name, tier in now["tiers"].items()}
        return EngineStats(
            told["waiting"],
            told["running"],
            told["kv_use"],
            {name: TenantService(**tenant) for name, tenant in told["tenants"].items()},
            SchedulingStats(**figures),
            SchedulingGauges(**now),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an engine's stats: {error!r}") from None
