"""The fair share of each tier: the least service that the tier receives while it has waiting requests.

Source: docs/preemption-design.md, section 4.2 (shares of 50, 35 and 15 %). Let S be the service given to all tiers and
S_t the service given to tier t, both since t last began to wait. With s_t the share of t:

    behind_t = s_t S - S_t            service units; 0 for a tier without waiting requests
    behind_t >= -slack                a larger lead is forgotten

Tier t is *owed* service if behind_t > slack. Unit: weighted tokens, whatever h the tenants are charged in.

Invariant: while a tier is owed service and no other tier is owed more, its request is admitted next. Over any interval
in which it waits, a tier therefore receives at least s_t S - 2 slack - U, where U is the service that a full batch may
still receive before it has room for the tier. So a request with B service before it in the queues of its tier is
admitted before all tiers together have received (B + 2 slack + U) / s_t more; one slack is enough if its tier began to
wait with it. A request that was not admitted for its tier's share may be evicted. The bound then applies again, at
most preemptions_max times, and after that the request runs to its end: every background request finishes.

Deviations: the source counts the time from arrival to end as GPU time, waiting included, so a starved tier looks
served; here only delivered service counts. The source counts since the server started, so after an idle morning a tier
is owed service all afternoon; here the count starts when the tier begins to wait. Service beyond its share that a tier
received while no other tier wanted it is not held against it later: otherwise background would starve all morning
after working through an idle night.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.accounting.tenant_counters import TenantCounters
from gpu_worker.policies.tiers.settings import TierSettings


@dataclass(frozen=True, slots=True)
class _Since:
    """Service of the tier and of all tiers at the time from which the tier's share is counted."""

    own: float
    total: float


class TierShares:
    """Counts the service of each tier. Amounts are in weighted tokens."""

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._given = TenantCounters()
        self._since: dict[Tier, _Since] = {}
        """The service at the start of the share's count, for each tier with waiting requests."""
        self._ended: dict[Tier, _Since] = {}
        """For each tier that stopped waiting, what `_since` was."""
        self.total = 0.0
        """Service given to all tiers."""
        self._running = 0

    def given(self, tier: Tier) -> float:
        return self._given.value(tier)

    def start_waiting(self, tier: Tier) -> None:
        """Start to count the tier's share: it got its first waiting request."""
        self._since[tier] = _Since(self.given(tier), self.total)

    def stop_waiting(self, tier: Tier) -> None:
        if tier in self._since:
            self._ended[tier] = self._since.pop(tier)

    def undo_stop_waiting(self, tier: Tier) -> None:
        """Continue the count as if the tier had not stopped waiting: the admission that stopped it was undone."""
        self._since[tier] = self._ended.pop(tier)

    def charge_prompt(self, tier: Tier, tokens: int) -> None:
        """Count the prompt of an admitted request; negative tokens refund an undone admission."""
        self._give(tier, WEIGHTED_TOKENS.input_weight * tokens)

    def charge_output(self, tier: Tier, tokens: int) -> None:
        self._give(tier, WEIGHTED_TOKENS.output_weight * tokens)
        if tokens > 0:
            self._forget_leads()

    def start_running(self, tier: Tier) -> None:
        """Include one more running request of the tier in `decoded`."""
        self._given.run(tier, WEIGHTED_TOKENS.output_weight)
        self._running += 1

    def stop_running(self, tier: Tier) -> None:
        self._given.stop(tier, WEIGHTED_TOKENS.output_weight)
        self._running -= 1

    def on_decoded(self, steps: int) -> None:
        """Count one output token for each step and running request."""
        self._given.step += steps
        self.total += WEIGHTED_TOKENS.output_weight * self._running * steps
        self._forget_leads()

    def behind(self, tier: Tier) -> float:
        """Return the service that the tier lacks of its share; negative if it received more."""
        since = self._since.get(tier)
        if since is None:
            return 0.0
        return self._settings.share(tier) * (self.total - since.total) - (self.given(tier) - since.own)

    def deficit(self, tier: Tier) -> float:
        """Return the lacking service as a fraction of all service given since the tier began to wait, 0 to its
        share."""
        since = self._since.get(tier)
        if since is None or self.total <= since.total:
            return 0.0
        return max(0.0, self.behind(tier) / (self.total - since.total))

    def is_owed(self, tier: Tier) -> bool:
        return self._settings.share(tier) > 0 and self.behind(tier) > self._settings.share_slack

    def _forget_leads(self) -> None:
        """Reduce larger leads to the slack. An admission does not call this, because it may still be undone."""
        slack = self._settings.share_slack
        for tier in self._since:
            if self.behind(tier) < -slack:
                self._since[tier] = _Since(self.given(tier) - slack, self.total)

    def _give(self, tier: Tier, service: float) -> None:
        self._given.add(tier, service)
        self.total += service
