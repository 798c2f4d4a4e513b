"""Names and settings of policies: a wrong one is one sentence that names it."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.registry import make_policy
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
        (
            {"agin_max": 1.0},
            r"tiers: there is no setting 'agin_max' \(did you mean 'aging_max'\?\); there are",
        ),
        ({"shares": {"gold": 0.5}}, "gold"),
        ({"shares": [0.5]}, r"tiers.shares should be a mapping, not \[0.5\]"),
        ({"may_drop": ["gold"]}, "gold"),
        ({"aging_max": "much"}, "tiers.aging_max should be a number, not 'much'"),
        ({"aging_max": True}, "tiers.aging_max should be a number, not True"),
        ({"preemption": "no"}, "tiers.preemption should be true or false, not 'no'"),
        ({"preemptions_max": 2.5}, "tiers.preemptions_max should be a whole number, not 2.5"),
        ({"at_limit": "stop"}, "tiers.at_limit should be one of promote, end, not 'stop'"),
        ({"may_drop": "background"}, "tiers.may_drop should be a list, not 'background'"),
        ({"lead_max": float("nan")}, "lead_max must be finite and above 0"),
        ({"preemptions_max": -1}, "preemptions_max must be at least 0"),
    ],
)
def test_impossible_plain_values_are_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tier_settings(config)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "lottery",
            r"unknown queue policy 'lottery'; there are dlpm:QUANTUM, drr:QUANTUM, fcfs, lcf, lpm, "
            r".*tiered\[:POLICY\], .*wsc\[:A,B,C\]",
        ),
        ("vtc:3", "takes nothing after its name"),
        ("rpm", "whole number"),
        ("rpm:", "nothing after the colon.*rpm:N"),
        ("rpm:0", "at least 1"),
        ("rpm:1.5", "whole number"),
        ("rpm:-1", "whole number"),
        ("rpm:" + "9" * 5_000, "whole number"),
        ("vtc-cap:much", "whole number"),
        ("vtc-noisy:0", "above 0 and at most 1"),
        ("vtc-noisy:1.1", "above 0 and at most 1"),
        ("vtc-noisy:nan", "above 0 and at most 1"),
        ("drr:0", "above 1e-06"),
        ("drr:inf", "above 1e-06"),
        ("wsc:", "nothing after the colon"),
        ("wsc:1,2", "3 numbers"),
        ("wsc:0,0,0", "not all 0"),
        ("wsc:1,-1,1", "none negative"),
        ("wsc:1,nan,1", "3 numbers"),
    ],
)
def test_a_wrong_name_is_one_sentence(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        make_policy(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["rpm:1", "rpm:000000000000000007", "vtc-noisy:1", "drr:0.5", "wsc:0,0,1", "vtc-cap:1"]
)
def test_the_limits_of_parameters_are_accepted(name: str) -> None:
    assert make_policy(name).waiting == 0
