"""The fair share of each tier: a floor under what it gets while it waits.

Source: the practitioner's design, section 4.2 (50, 35 and 15 %). With S the service given to all and S_t that to tier
t, both since t last began to wait, s_t its share:

    behind_t = s_t S - S_t            service units; a tier that does not wait is not behind
    behind_t >= -slack                a greater lead is forgotten

Tier t is *owed* where behind_t > slack. Unit: weighted tokens, whatever h the tenants are charged in.

Invariant: a tier's request is admitted next while it is owed and others are not owed more, so it gets, over any stretch
in which it waits, at least s_t S - 2 slack - U, U what a full batch may still be given before it has room for the tier.
So a request with B service before it in its tier's lines is admitted by the time that everybody together was given
(B + 2 slack + U) / s_t; with one slack where its tier began to wait with it. If it was not owed and is evicted, that
holds again, and preemptions_max times at most; then it runs to its end: background always finishes.

Deviations: the source counts the time from arrival to end as GPU time, waits included, so a tier that starves looks
served; here it is service given. It counts since the server started, so an idle morning makes a tier owed all
afternoon; here, since the tier began to wait. And what a tier got beyond its share while nobody else wanted it is not
held against it later: after an idle night's work, background would starve all morning.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.accounting.tenant_counters import TenantCounters
from gpu_worker.policies.tiers.settings import TierSettings


@dataclass(frozen=True, slots=True)
class _Since:
    """Service by the time that a tier began to wait."""

    own: float
    total: float


class TierShares:
    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._given = TenantCounters()
        self._since: dict[Tier, _Since] = {}
        self._before: dict[Tier, _Since] = {}
        self.total = 0.0
        """Service given to all tiers."""
        self._running = 0

    def given(self, tier: Tier) -> float:
        return self._given.value(tier)

    def start_waiting(self, tier: Tier) -> None:
        """Something of it waits; nothing did."""
        self._since[tier] = _Since(self.given(tier), self.total)

    def stop_waiting(self, tier: Tier) -> None:
        if tier in self._since:
            self._before[tier] = self._since.pop(tier)

    def undo_stop_waiting(self, tier: Tier) -> None:
        """What ended its wait came to nothing: it was never away."""
        self._since[tier] = self._before.pop(tier)

    def charge_prompt(self, tier: Tier, tokens: int) -> None:
        """Of a request admitted; negative where that came to nothing."""
        self._give(tier, WEIGHTED_TOKENS.input_weight * tokens)

    def charge_output(self, tier: Tier, tokens: int) -> None:
        self._give(tier, WEIGHTED_TOKENS.output_weight * tokens)
        if tokens > 0:
            self._forget_leads()

    def start_running(self, tier: Tier) -> None:
        """One more request of it is in the batch: `decoded` is about it too."""
        self._given.run(tier, WEIGHTED_TOKENS.output_weight)
        self._running += 1

    def stop_running(self, tier: Tier) -> None:
        self._given.stop(tier, WEIGHTED_TOKENS.output_weight)
        self._running -= 1

    def decoded(self, steps: int) -> None:
        self._given.step += steps
        self.total += WEIGHTED_TOKENS.output_weight * self._running * steps
        self._forget_leads()

    def behind(self, tier: Tier) -> float:
        """Service units; negative where it has more than its share."""
        since = self._since.get(tier)
        if since is None:
            return 0.0
        return self._settings.share(tier) * (self.total - since.total) - (self.given(tier) - since.own)

    def deficit(self, tier: Tier) -> float:
        """The part of its share that it did not get, in shares of the whole: 0 to the share."""
        since = self._since.get(tier)
        if since is None or self.total <= since.total:
            return 0.0
        return max(0.0, self.behind(tier) / (self.total - since.total))

    def is_owed(self, tier: Tier) -> bool:
        return self._settings.share(tier) > 0 and self.behind(tier) > self._settings.share_slack

    def _forget_leads(self) -> None:
        """Beyond the slack. Not at an admission: it may come to nothing yet."""
        slack = self._settings.share_slack
        for tier in self._since:
            if self.behind(tier) < -slack:
                self._since[tier] = _Since(self.given(tier) - slack, self.total)

    def _give(self, tier: Tier, service: float) -> None:
        self._given.add(tier, service)
        self.total += service
