"""An engine's stats to JSON and back, for engines that run in a process of their own."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineStats
from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import ObservedCosts, SchedulingGauges, SchedulingStats, TierGauges


def stats_to_json(stats: EngineStats) -> str:
    payload = asdict(stats)
    payload["counts"]["preemptions"] = [
        [strategy, tier, count] for (strategy, tier), count in stats.counts.preemptions.items()
    ]
    return json.dumps(payload, separators=(",", ":"))


def stats_from_json(text: str) -> EngineStats:
    """Raises ValueError for text that is not an engine's stats."""
    try:
        payload: dict[str, Any] = json.loads(text)
        counts, gauges = dict(payload["counts"]), dict(payload["gauges"])
        counts["preemptions"] = Counter(
            {(Strategy(strategy), Tier(tier)): count for strategy, tier, count in counts["preemptions"]}
        )
        counts["costs"] = {Strategy(name): ObservedCosts(**seen) for name, seen in counts["costs"].items()}
        gauges["tiers"] = {Tier(name): TierGauges(**tier) for name, tier in gauges["tiers"].items()}
        return EngineStats(
            payload["waiting"],
            payload["running"],
            payload["kv_use"],
            {name: TenantService(**tenant) for name, tenant in payload["tenants"].items()},
            SchedulingStats(**counts),
            SchedulingGauges(**gauges),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an engine's stats: {error!r}") from None
