"""Make a queue policy from plain configuration: the policy's name and the settings of its tiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers.settings import tier_settings
from gpu_worker.policies.tiers.tiered import TieredQueue


def make_queue(policy: str, tiers: Mapping[str, Any] | None = None) -> QueuePolicy:
    """Make a queue policy by its name. `tiers`: fields of TierSettings as plain values, for a policy with tiers; every
    policy takes `cached_fraction`.

    Raises ValueError for an unknown policy, for a wrong setting, and for settings of tiers that the policy lacks.
    """
    settings = None if tiers is None else tier_settings(tiers)
    queue = make_policy(policy, tiers=settings)
    if settings is None or tiers is None or isinstance(queue, TieredQueue):
        return queue
    if tiers.keys() - {"cached_fraction"}:
        raise ValueError(f"queue policy {policy!r} has no tiers to set; tiered:{policy} has")
    queue.cached_fraction = settings.cached_fraction
    return queue
