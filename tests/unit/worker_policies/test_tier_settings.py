"""Impossible tier settings are refused with a sentence that names the setting."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.tiers import TierSettings, tier_settings


def test_the_defaults_are_the_sources() -> None:
    settings = TierSettings()
    assert [settings.share(tier) for tier in Tier] == [0.50, 0.35, 0.15, 0.0]
    assert (settings.aging_per_s, settings.aging_max, settings.deficit_factor) == (0.1, 1.5, 2.0)
    assert (settings.preemptions_max, settings.premium_reserve, settings.lead_max) == (3, 0.0, inf)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"shares": {Tier.PREMIUM: 0.6, Tier.STANDARD: 0.5}}, "with a sum of at most 1"),
        ({"shares": {Tier.PREMIUM: -0.1}}, "shares of premium must be at least 0 and at most 1, not -0.1"),
        ({"shares": {Tier.PREMIUM: 1.1}}, "shares of premium must be at least 0 and at most 1, not 1.1"),
        ({"shares": {Tier.PREMIUM: nan}}, "shares of premium must be finite and at least 0 and at most 1, not nan"),
        ({"shares": {Tier.SYSTEM: 0.1}}, "the system tier has no share"),
        ({"share_slack": -1.0}, "share_slack must be at least 0, not -1.0"),
        ({"share_slack": inf}, "share_slack .* not inf"),
        ({"aging_per_s": -0.1}, "aging_per_s"),
        ({"aging_max": nan}, "aging_max .* not nan"),
        ({"deficit_factor": -2.0}, "deficit_factor"),
        ({"preemptions_max": -1}, "preemptions_max must be at least 0, not -1"),
        ({"at_limit": "drop"}, "at_limit must be promote or end, not 'drop'"),
        ({"lead_max": 0.0}, "lead_max must be above 0, not 0.0"),
        ({"lead_max": nan}, "lead_max"),
        ({"premium_reserve": 1.0}, "premium_reserve must be at least 0 and below 1, not 1.0"),
        ({"premium_reserve": -0.1}, "premium_reserve"),
        ({"may_drop": frozenset({Tier.SYSTEM})}, "may_drop may contain only premium, standard, background"),
        ({"may_drop": frozenset({"gold"})}, "may_drop may contain only"),
    ],
)
def test_an_impossible_setting_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TierSettings(**settings)


def test_the_limits_of_possible_settings_are_accepted() -> None:
    TierSettings(shares={Tier.PREMIUM: 0.1 + 0.2, Tier.STANDARD: 0.7}, premium_reserve=0.999)
    TierSettings(shares={}, share_slack=0.0, aging_per_s=0.0, aging_max=0.0, deficit_factor=0.0, preemptions_max=0)
    TierSettings(shares={Tier.BACKGROUND: 1.0}, may_drop=frozenset({Tier.PREMIUM}))


def test_settings_are_read_from_plain_values() -> None:
    settings = tier_settings({"shares": {"premium": 1, "background": 0}, "may_drop": ["background"], "at_limit": "end"})
    assert settings == TierSettings(
        shares={Tier.PREMIUM: 1.0, Tier.BACKGROUND: 0.0}, may_drop=frozenset({Tier.BACKGROUND}), at_limit="end"
    )


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"agin_max": 1.0}, "tiers have no setting 'agin_max'; there are aging_max, aging_per_s"),
        ({"shares": {"gold": 0.5}}, "gold"),
        ({"shares": [0.5]}, "has the wrong type"),
        ({"may_drop": ["gold"]}, "gold"),
        ({"aging_max": "much"}, "has the wrong type"),
        ({"preemptions_max": -1}, "preemptions_max must be at least 0"),
    ],
)
def test_impossible_plain_values_are_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tier_settings(config)
