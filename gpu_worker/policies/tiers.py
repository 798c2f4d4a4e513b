"""Tiers: their settings, the fair share of each, and the state of a request among them. fairness/tiered.py uses them.

Source: docs/preemption-design.md, sections 2 to 4. The defaults of the settings are the source's where it gives a
value, except premium_reserve. Each class names its section and its deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from dispatcher.policies.bounds import AnySequence, BoundedSettings, Bounds, NotNegative, Part, check_bounds
from dispatcher.policies.service import ADAPTER_LOAD_TOKENS, CACHED_FRACTION, WEIGHTED_TOKENS
from dispatcher.policies.tiers import SHARES, TENANT_TIERS, TenantTier, Tier
from gpu_worker.policies.fairness.accounting import TenantCounters
from gpu_worker.policies.fairness.interface import QueueRequest, RequestRecord
from gpu_worker.policies.plain_settings import read_settings


@dataclass(frozen=True, slots=True)
class TierSettings(BoundedSettings):
    """`shares`: the fraction of all service that a tier receives at least while it has waiting requests; 0 guarantees
    nothing, and the sum is at most 1. `share_slack`: service units that a tier may be behind its share before it goes
    first.

    `aging_per_s`, `aging_max`: ranks that a waiting request gains per second, and at most. `deficit_factor`: ranks that
    it gains for each share of 1 that its tier lacks.

    `preemption`: whether a running request may be evicted for a request of a more urgent tier. `preemptions_max`: how
    often one request may be preempted. `at_limit`: what follows then. `promote`: the request goes before those of all
    tenants and is not evicted again; `end`: the next preemption ends it with an error. `may_drop`: tiers with
    requests that may be dropped if that is cheaper than to continue them later.

    `lead_max`: service over weight by which a tenant may lead another tenant of its tier before its running requests
    are evicted for the other's (VTC, Appendix C.3); infinity disables this.

    `premium_reserve`: fraction of the KV blocks that only premium and system requests may take, 0 to below 1. The
    source recommends 0.3, which costs throughput. `cached_fraction`: price of a prompt token found in the prefix
    cache, as a fraction of the price of a computed one, 0 to 1. `adapter_load_tokens`: input tokens that the load of a
    LoRA adapter is charged as, to the tenant that causes it. `adapter_lead`: service over weight by which a tenant may
    lead another one of its tier that waits for the place of an adapter, while its own requests use the places.
    `locality`: within the tenant that is next, the request with the longest cached prefix goes first
    (fairness/locality.py); without it, the first to arrive. `loaded_first`: within the tenant that is next, a request
    with a loaded LoRA adapter goes first (fairness/loaded_first.py).

    Raises ValueError for an impossible value.
    """

    shares: Mapping[TenantTier, Part] = field(default_factory=lambda: dict(SHARES))
    share_slack: NotNegative = 4096.0
    aging_per_s: NotNegative = 0.1
    aging_max: NotNegative = 1.5
    deficit_factor: NotNegative = 2.0
    preemption: bool = True
    preemptions_max: Annotated[int, Bounds(0)] = 3
    at_limit: Literal["promote", "end"] = "promote"
    may_drop: Annotated[frozenset[TenantTier], AnySequence()] = frozenset()
    lead_max: Annotated[float, Bounds(above=0, is_finite=False)] = inf
    premium_reserve: Annotated[float, Bounds(0, below=1)] = 0.0
    cached_fraction: Part = CACHED_FRACTION
    adapter_lead: NotNegative = 8192.0
    adapter_load_tokens: Annotated[int, Bounds(0, 1_000_000)] = ADAPTER_LOAD_TOKENS
    locality: bool = False
    loaded_first: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError("shares must be between 0 and 1, with a sum of at most 1")
        if Tier.SYSTEM in self.shares:
            raise ValueError("the system tier has no share, because it always goes first")
        if self.at_limit not in ("promote", "end"):
            raise ValueError(f"at_limit must be promote or end, not {self.at_limit!r}")
        if Tier.SYSTEM in self.may_drop or not self.may_drop <= set(Tier):
            raise ValueError(f"may_drop may contain only {', '.join(TENANT_TIERS)}")

    def share(self, tier: Tier) -> float:
        return self.shares.get(tier, 0.0)


def tier_settings(config: Mapping[str, Any]) -> TierSettings:
    """Make settings from plain values, as in JSON or YAML. Raises ValueError, with one sentence for a person."""
    return read_settings(TierSettings, config, "tiers")


@dataclass(frozen=True, slots=True)
class _Since:
    """Service of the tier and of all tiers at the time from which the tier's share is counted."""

    own: float
    total: float


class TierShares:
    """The fair share of each tier: the least service that the tier receives while it has waiting requests.

    Source: docs/preemption-design.md, section 4.2 (shares of 50, 35 and 15 %). Let S be the service given to all tiers
    and S_t the service given to tier t, both since t last began to wait. With s_t the share of t:

        behind_t = s_t S - S_t            service units; 0 for a tier without waiting requests
        behind_t >= -slack                a larger lead is forgotten

    Tier t is *owed* service if behind_t > slack. Unit: weighted tokens, whatever h the tenants are charged in.

    Invariant: while a tier is owed service and no other tier is owed more, its request is admitted next. Over any
    interval in which it waits, a tier therefore receives at least s_t S - 2 slack - U, where U is the service that a
    full batch may still receive before it has room for the tier. So a request with B service before it in the queues of
    its tier is admitted before all tiers together have received (B + 2 slack + U) / s_t more; one slack is enough if
    its tier began to wait with it. A request that was not admitted for its tier's share may be evicted. The bound then
    applies again, at most preemptions_max times, and after that the request runs to its end: every background request
    finishes.

    Deviations: the source counts the time from arrival to end as GPU time, waiting included, so a starved tier looks
    served; here only delivered service counts. The source counts since the server started, so after an idle morning a
    tier is owed service all afternoon; here the count starts when the tier begins to wait. Service beyond its share
    that a tier received while no other tier wanted it is not held against it later: otherwise background would starve
    all morning after working through an idle night.
    """

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._share = {tier: settings.share(tier) for tier in Tier}
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

    def lack(self, tier: Tier) -> tuple[float, float]:
        """Return `behind` and `deficit` of a tier."""
        since = self._since.get(tier)
        if since is None:
            return 0.0, 0.0
        total = self.total - since.total
        behind = self._share[tier] * total - (self._given.value(tier) - since.own)
        return behind, behind / total if behind > 0 and total > 0 else 0.0

    def behind(self, tier: Tier) -> float:
        """Return the service that the tier lacks of its share; negative if it received more."""
        return self.lack(tier)[0]

    def deficit(self, tier: Tier) -> float:
        """Return the lacking service as a fraction of all service given since the tier began to wait, 0 to its
        share."""
        return self.lack(tier)[1]

    def owes(self, tier: Tier, behind: float) -> bool:
        """Return whether a tier that is so far behind is owed service."""
        return behind > self._settings.share_slack and self._share[tier] > 0

    def is_owed(self, tier: Tier) -> bool:
        return self.owes(tier, self.behind(tier))

    def _forget_leads(self) -> None:
        """Reduce larger leads to the slack. An admission does not call this, because it may still be undone."""
        slack = self._settings.share_slack
        for tier, since in self._since.items():
            given = self._given.value(tier)
            if given - since.own - self._share[tier] * (self.total - since.total) > slack:
                self._since[tier] = _Since(given - slack, self.total)

    def _give(self, tier: Tier, service: float) -> None:
        self._given.add(tier, service)
        self.total += service


PROMOTED = -0.5
"""Between the rank of premium and that of the system tier."""


@dataclass(slots=True, eq=False)
class TierState:
    """The state of one request among the tiers: its rank, how the rank changes while it waits, and what protects it. It
    adds to the record that the policy of the request's tier keeps.

    Source: docs/preemption-design.md, sections 2.2 and 4.2. The lowest effective rank goes first:

        effective rank = rank of the tier - min(wait x aging_per_s, aging_max) - deficit of the tier x deficit_factor

    `wait`: the seconds of all its stays in the queue together; `deficit` as in TierShares. A running request keeps the
    rank that it had at its admission.

    Deviations: with the source's defaults a background request that waits for ever reaches rank 2 - 1.5 - 0.15 x 2 =
    0.2, which is still behind every new premium request, so nothing guarantees that it ever runs. Here the fair share
    is a minimum that does not depend on ranks (TierShares), and a request admitted for its tier's share is not evicted.
    A request that was preempted `preemptions_max` times gets the rank PROMOTED and is not evicted again either.

    `since_s`: when the request entered its queue. `waited_s`: seconds in the queue before that. `rank`: effective rank
    at its admission, which was number `admission` of the policy. `for_share`: it was admitted because its tier was
    owed service. `aged`: at its admission, aging had raised it by a whole rank, so that it stood with the tier above.
    """

    record: RequestRecord
    since_s: float
    waited_s: float = 0.0
    rank: float = 0.0
    admission: int = 0
    for_share: bool = False
    aged: bool = False
    running: bool = False

    @property
    def request(self) -> QueueRequest:
        return self.record.request

    @property
    def tier(self) -> Tier:
        return self.record.request.tier

    @property
    def preemptions(self) -> int:
        return self.record.preemptions

    def exhausted(self, settings: TierSettings) -> bool:
        """Return whether the request was preempted as often as the settings allow."""
        return self.preemptions >= settings.preemptions_max

    def promoted(self, settings: TierSettings) -> bool:
        return settings.at_limit == "promote" and self.preemptions > 0 and self.exhausted(settings)

    def protected(self, settings: TierSettings) -> bool:
        """Return whether the request, if it runs, must not be evicted for another one."""
        return self.for_share or (settings.at_limit == "promote" and self.exhausted(settings))

    def enter_batch(
        self, settings: TierSettings, now_s: float, deficit: float, *, for_share: bool, admission: int
    ) -> None:
        """Record the admission, with the rank and the wait of this moment."""
        self.rank, self.for_share = self.rank_now(settings, now_s, deficit), for_share
        self.aged = self.gained(settings, now_s) >= 1.0
        self.waited_s += max(0.0, now_s - self.since_s)
        self.running, self.admission = True, admission

    def rank_now(self, settings: TierSettings, now_s: float, deficit: float) -> float:
        """Return the effective rank of a waiting request."""
        record = self.record
        rank = record.request.tier.rank - self.gained(settings, now_s) - deficit * settings.deficit_factor
        return min(rank, PROMOTED) if record.preemptions and self.promoted(settings) else rank

    def gained(self, settings: TierSettings, now_s: float) -> float:
        """Return the ranks that a waiting request has gained by aging."""
        wait_s = self.waited_s + max(0.0, now_s - self.since_s)
        return min(wait_s * settings.aging_per_s, settings.aging_max)
