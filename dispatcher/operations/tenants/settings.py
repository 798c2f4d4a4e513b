"""The settings of a tenant that an administrator chooses, by the names of the file of tenants.

dispatcher/settings/sections.py reads them:
weight, rate_per_s, burst, tier, queue_max, max_tokens, models, slo_class
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tenants import Tenant, check_model_name
from dispatcher.policies.clocks import Share
from dispatcher.policies.share_bounds import SHARE_BOUNDS, share_problem
from dispatcher.policies.tiers import Tier


def settings_of(tenant: Tenant) -> dict[str, Any]:
    """Return all settings, as plain values."""
    return {
        "weight": tenant.share.weight,
        "rate_per_s": tenant.share.rate_per_s,
        "burst": tenant.share.burst,
        "tier": tenant.tier.value,
        "queue_max": tenant.queue_items_max,
        "max_tokens": tenant.max_tokens_max,
        "models": None if tenant.models is None else list(tenant.models),
        "slo_class": tenant.slo_class,
    }


def with_settings(tenant: Tenant, settings: Mapping[str, Any]) -> Tenant:
    """Return the tenant with these settings; the others stay. Raises ConfigurationError for invalid ones."""
    merged = {**settings_of(tenant), **settings}
    try:
        share = Share(merged["weight"], merged["rate_per_s"], merged["burst"])
        models = None if merged["models"] is None else tuple(map(check_model_name, merged["models"]))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return replace(
        tenant,
        share=share,
        tier=Tier(merged["tier"]),
        queue_items_max=merged["queue_max"],
        max_tokens_max=merged["max_tokens"],
        models=models,
        slo_class=merged["slo_class"],
    )


def check_bounds(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a new setting outside the bounds of shares (policies/share_bounds.py).

    Reading does not check them, so a tenant that is older than the bounds can still be read, changed and deleted.
    """
    for setting in SHARE_BOUNDS:
        problem = share_problem(setting, settings[setting]) if setting in settings else None
        if problem is not None:
            raise ConfigurationError(f"{setting} {problem}")


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, each as (before, after). None has no settings."""
    old, new = before or {}, after or {}
    names = [*old, *(name for name in new if name not in old)]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}
