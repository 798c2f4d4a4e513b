"""Workers and backlogs for tests of whole plans. The present is NOW."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.policies.planning.groups import GroupFigures, GroupKey

NOW = 1_000_000.0
PER_S = 1_000.0
"""Service units per second of every worker unless stated otherwise."""


def worker(
    name: str = "w",
    loaded: str = "a",
    *,
    models: str = "abc",
    swap_s: float = 2.0,
    loaded_at: float = 0.0,
    free_s: float = 0.0,
    kind: str = "gpu",
    per_s: float = PER_S,
    slots: int = 8,
) -> FleetWorker:
    """Return a worker that can load each model of `models`, a name being one letter."""
    swaps: Mapping[str, float] = {model: 0.0 if model == loaded else swap_s for model in models}
    return FleetWorker(name, kind, loaded, loaded_at, swaps, free_s, dict.fromkeys(models, per_s), slots)


def group(
    model: str = "a", due_s: float = 60.0, seconds: float = 5.0, requests: int = 10, slo_class: str = "normal"
) -> GroupFigures:
    """Return a group that takes `seconds` on one worker."""
    service = seconds * PER_S
    due_at = NOW + due_s
    return GroupFigures(GroupKey(model, slo_class, 0), requests, service, 100.0, 10.0, due_at, due_at)


def backlog(*groups: GroupFigures, tenant: str = "t", share: Share | None = None, **forecast_s: float) -> TenantBacklog:
    """Return a tenant's backlog. `forecast_s`: by model, in seconds of one worker."""
    forecast = {model: seconds * PER_S for model, seconds in forecast_s.items()}
    return TenantBacklog(tenant, share or Share(), groups, forecast)
