"""BWFQ exactly as published: credits earned, credits spent, and a heap by their ratio. For reproduction.

Source: BWFQ (2025), sections 3.1 and 3.2, equations 1 to 3, Algorithms 1 and 2. A tenant i with base rate r_i:

    earned_i(t) = earned_i(t0) + (t - t0) x r_i                                     (equation 1, Algorithm 2)
    an arrival goes at once if a slot is free and earned_i - spent_i > 0; spent_i += 1  (equation 2, Algorithm 1)
    else it waits at priority p_i = spent_i / max(earned_i, 1), lowest first         (equation 3)
    on completion the head of the queue is dispatched; spent_i += 1, no credit test  (section 3.4, worker pool)

Units: earned and spent in requests ("tokens" in the paper, credits here), r_i = Share.rate_per_s in requests a second.
Weight, burst and cost are unknown to the paper and not used. Ties go by arrival. The priority is the one at the time of
queueing. A tenant starts with earned = spent = 0 when first seen, so its first priority is 0.

What is published has two gaps, kept here and made visible (clocks.py and bwfq.py close them):
- A new tenant's first request queues, 0 > 0 being false, and so does any beyond the credits earned; only a completion
  takes from the queue. So a request can wait at an idle fleet with nothing to wake it: it is *stranded*. `stranded`
  counts those waiting so now, `stranded_total` all that ever were. The order `ratio+wake` also drains on arrival, and
  when slots are added: it is work conserving, and no request is stranded.
- Nothing is ever forgotten: earned and spent grow for ever, and a tenant that is gone keeps its entry (forgetting one
  would give it a new tenant's priority).
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.policies.old_orders.interface import Decision, Dispatched, Queued, checked_slots, later, registered
from dispatcher.policies.old_orders.single_queue import SingleQueue

_DEFAULT_RATE_PER_S = Share().rate_per_s


class Credits:
    """A tenant's counters: the paper's four numbers."""

    __slots__ = ("earned", "rate_per_s", "spent", "updated_at")

    def __init__(self, rate_per_s: float, now: float) -> None:
        self.earned = 0.0
        self.spent = 0.0
        self.updated_at = now
        self.rate_per_s = rate_per_s

    def update(self, now: float) -> None:
        """Algorithm 2."""
        self.earned += (now - self.updated_at) * self.rate_per_s
        self.updated_at = now


class Ratio(SingleQueue):
    def __init__(self, slots: int, *, lead_max: float = LEAD_MAX, wake: bool = False) -> None:
        super().__init__(slots)
        self._wake = wake
        self._credits: dict[str, Credits] = {}
        self._rates: dict[str, float] = {}
        self._ever_stranded: set[str] = set()
        self.stranded_total = 0

    @property
    def stranded(self) -> int:
        """The number of invocations that wait while slots are free and no completion will wake them."""
        return len(self._waiting) if self._free() and not self._running else 0

    def credits_of(self, tenant: str) -> tuple[float, float]:
        """(earned, spent) in requests, as of the last update; zeros for a tenant never seen."""
        account = self._credits.get(tenant)
        return (0.0, 0.0) if account is None else (account.earned, account.spent)

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        decision = super().arrive(tenant, invocation_id, cost, now)
        if self.stranded and isinstance(decision, Queued):
            self._note_stranded({invocation_id})
        return decision

    def cancel(self, invocation_id: str, now: float) -> bool:
        self._ever_stranded.discard(invocation_id)
        return super().cancel(invocation_id, now)

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        if self._wake:
            return super().set_slots(slots, now)
        self._now = later(self._now, now)
        self._slots = checked_slots(slots)
        if self.stranded:
            self._note_stranded(self._waiting.keys() - self._ever_stranded)
        return ()

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        self._now = later(self._now, now)
        self._rates[tenant] = share.rate_per_s
        account = self._credits.get(tenant)
        if account is not None:
            account.update(self._now)
            account.rate_per_s = share.rate_per_s

    def _goes_at_once(self, tenant: str) -> bool:
        """Algorithm 1, line 3. To drain on arrival means to dispatch the arrival: with slots free, no other waits."""
        account = self._updated(tenant)
        return self._wake or account.earned - account.spent > 0

    def _priority(self, tenant: str) -> float:
        account = self._updated(tenant)
        return account.spent / max(account.earned, 1.0)

    def _spend(self, tenant: str) -> None:
        self._updated(tenant).spent += 1.0

    def _dispatch(self, dispatched: Dispatched) -> Dispatched:
        self._ever_stranded.discard(dispatched.invocation_id)
        return super()._dispatch(dispatched)

    def _updated(self, tenant: str) -> Credits:
        account = self._credits.get(tenant)
        if account is None:
            account = self._credits[tenant] = Credits(self._rates.get(tenant, _DEFAULT_RATE_PER_S), self._now)
        account.update(self._now)
        return account

    def _note_stranded(self, invocation_ids: Set[str]) -> None:
        self.stranded_total += len(invocation_ids)
        self._ever_stranded.update(invocation_ids)


registered("ratio")(Ratio)
registered("ratio+wake")(partial(Ratio, wake=True))
