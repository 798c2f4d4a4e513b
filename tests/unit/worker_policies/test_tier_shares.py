"""The least service of a tier while it waits, in service units worked by hand."""

from __future__ import annotations

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.tiers import TierSettings, TierShares

PREMIUM, STANDARD, BACKGROUND = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def shares_of(slack: float = 100.0, **shares: float) -> TierShares:
    by_tier = {Tier(tier): share for tier, share in shares.items()} or {BACKGROUND: 0.15}
    return TierShares(TierSettings(shares=by_tier, share_slack=slack))


def test_a_tier_is_owed_its_share_of_all_service_since_it_began_to_wait() -> None:
    shares = shares_of()
    shares.charge_prompt(PREMIUM, 1_000)
    shares.start_waiting(BACKGROUND)
    assert shares.behind(BACKGROUND) == 0, "earlier service does not count"
    shares.charge_prompt(PREMIUM, 600)
    assert shares.behind(BACKGROUND) == 90
    assert not shares.is_owed(BACKGROUND)
    shares.charge_output(PREMIUM, 40)
    assert shares.behind(BACKGROUND) == 102
    assert shares.is_owed(BACKGROUND)
    shares.charge_prompt(BACKGROUND, 20)
    assert shares.behind(BACKGROUND) == pytest.approx(85)


def test_a_tier_behind_by_the_slack_is_not_owed_yet() -> None:
    shares = shares_of(slack=15.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(PREMIUM, 100)
    assert shares.behind(BACKGROUND) == 15.0
    assert not shares.is_owed(BACKGROUND)


def test_waiting_time_is_not_service() -> None:
    """The source counts the time from arrival to end as GPU time, so a starved tier looks served."""
    shares = shares_of()
    shares.start_waiting(BACKGROUND)
    shares.start_running(PREMIUM)
    shares.on_decoded(1_000)
    assert shares.given(BACKGROUND) == 0
    assert shares.behind(BACKGROUND) == pytest.approx(300)


def test_a_tier_that_does_not_wait_is_not_behind() -> None:
    """The source counts since the server started, so an idle morning makes a tier owed all afternoon."""
    shares = shares_of()
    shares.charge_prompt(PREMIUM, 10_000)
    assert shares.behind(BACKGROUND) == shares.deficit(BACKGROUND) == 0
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(PREMIUM, 10_000)
    assert shares.is_owed(BACKGROUND)
    shares.stop_waiting(BACKGROUND)
    assert not shares.is_owed(BACKGROUND)
    shares.start_waiting(BACKGROUND)
    assert shares.behind(BACKGROUND) == 0


def test_the_deficit_is_the_lacking_fraction_of_all_service() -> None:
    shares = shares_of()
    shares.start_waiting(BACKGROUND)
    assert shares.deficit(BACKGROUND) == 0
    shares.charge_prompt(PREMIUM, 900)
    assert shares.deficit(BACKGROUND) == 0.15
    shares.charge_prompt(BACKGROUND, 100)
    assert shares.deficit(BACKGROUND) == pytest.approx(0.05)
    shares.charge_prompt(BACKGROUND, 1_000)
    assert shares.deficit(BACKGROUND) == 0, "never negative"


def test_a_lead_beyond_the_slack_is_forgotten() -> None:
    """After a night alone it is 0.85 x 10,000 ahead of its share, and would wait until premium got 56,667."""
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_output(BACKGROUND, 5_000)
    assert shares.behind(BACKGROUND) == -30
    shares.charge_prompt(PREMIUM, 400)
    assert shares.behind(BACKGROUND) == 30
    assert not shares.is_owed(BACKGROUND)
    shares.charge_prompt(PREMIUM, 1)
    assert shares.is_owed(BACKGROUND)


def test_a_lead_by_decoded_tokens_is_forgotten_too() -> None:
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.start_running(BACKGROUND)
    shares.on_decoded(5_000)
    assert shares.behind(BACKGROUND) == -30


def test_a_lead_within_the_slack_is_not_forgotten() -> None:
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_output(BACKGROUND, 10)
    assert shares.behind(BACKGROUND) == -17


def test_a_refunded_prompt_leaves_the_tier_no_further_behind() -> None:
    """An admission forgets no lead, because it may be undone."""
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(BACKGROUND, 10_000)
    shares.charge_prompt(BACKGROUND, -10_000)
    assert shares.behind(BACKGROUND) == 0
    assert shares.total == 0


def test_a_refunded_output_leaves_the_tier_no_further_behind() -> None:
    """Two admissions of one pass are undone, one after the other."""
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_output(PREMIUM, 4)
    shares.charge_prompt(BACKGROUND, 10_000)
    shares.charge_output(PREMIUM, -4)
    shares.charge_prompt(BACKGROUND, -10_000)
    assert shares.behind(BACKGROUND) == 0


def test_a_tier_without_a_share_is_owed_nothing() -> None:
    """Even if a charge from before it began to wait is refunded afterwards."""
    shares = shares_of(slack=0.0, standard=0.5)
    shares.charge_prompt(BACKGROUND, 100)
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(BACKGROUND, -100)
    assert shares.behind(BACKGROUND) > 0
    assert not shares.is_owed(BACKGROUND)


def test_the_total_is_the_service_of_all_tiers() -> None:
    shares = shares_of()
    shares.start_running(PREMIUM)
    shares.start_running(PREMIUM)
    shares.start_running(STANDARD)
    shares.on_decoded(10)
    shares.charge_prompt(Tier.SYSTEM, 7)
    shares.stop_running(PREMIUM)
    shares.on_decoded(5)
    assert [shares.given(tier) for tier in (PREMIUM, STANDARD, BACKGROUND, Tier.SYSTEM)] == [50, 30, 0, 7]
    assert shares.total == 87
