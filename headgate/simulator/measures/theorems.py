"""Checks the theorems of the VTC paper (section 4) on a run: the worst case of each, beside its bound.

W_f is the service that client f received, over its weight: the prompt at admission, each output token when it is
generated. With U = max(w_p L_input, w_q M), each over weight:

    4.3    counters of waiting clients differ by at most U
    4.4    |W_f - W_g| <= 2 U over any interval in which both are backlogged
    4.9    W_g - W_f <= 4 U over any interval in which f is backlogged
    4.11   between the arrival of a request of an idle client and its dispatch, the other clients receive at most
           2 (n - 1) U plus the service between two attempts to admit
    4.13   T / n - W_f <= 4 U over each maximal interval in which f is backlogged; T: what the n clients active in it
           receive

Deviations from the paper:

- M is not the pool. M stands for what a running batch can hold. A server that admits by the peak of future use admits
  requests that together have more tokens than the pool, because they do not all hold their last token at once. With
  the pool for M, Lemma 4.3 fails now and then (evidence/vtc/theorems.py counts how often). Here M is the largest sum of
  input and true output of the requests that are in the batch together, measured in the run.
- 4.11 bounds a time by assuming a least capacity. Its proof bounds service, and that is what is checked. A request may
  arrive just after an attempt to admit, so the measured service between two attempts is added.
- With weights, T / n is T over the sum of the weights.

M and that service are known only at the end of a run: worst cases are collected, and compared then. Every worst case is
exact, not sampled (PairBounds). An event costs one comparison with each other client.

The monitor has its own record of what each client has received, over its weight, and of VTC's counters. It is kept
apart from the policy's counters, so that a defect in either shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.policies.service import WeightedTokens
from headgate.simulator.engines.interface import Observer
from headgate.simulator.requests import SimRequest

TENANTS_MAX = 128
"""With more tenants a run is not monitored: the pairs would cost more than the run."""
_ROUNDING = 1e-9
"""Sums of the same charges in another order differ by less than this, relative to the bound."""

_Row = list[float]


@dataclass(slots=True)
class Account:
    """One tenant. Amounts in service units over weight. `lifts`: by how much its counter exceeds what it received."""

    number: int
    received: float = 0.0
    per_step: float = 0.0
    """What its running requests receive in each decode step."""
    since_step: int = 0
    running: int = 0
    waiting: int = 0
    lifts: float = 0.0
    weight: float = 1.0
    """The lowest weight of its requests."""

    def value(self, step: int) -> float:
        """Return what the tenant has received by this step."""
        return self.received + self.per_step * (step - self.since_step)

    def add(self, amount: float, per_step: float, step: int) -> None:
        """Add `amount` at once, and from now on `per_step` more in each step."""
        self.received = self.value(step) + amount
        self.since_step = step
        self.per_step = self.per_step + per_step if self.running else 0.0


class Accounts:
    """`step`: decode steps so far. `all`: the accounts by number, in the order of the tenants' first requests."""

    def __init__(self) -> None:
        self.step = 0
        self.all: list[Account] = []
        self._by_tenant: dict[str, Account] = {}
        self._last_left: Account | None = None

    def of(self, tenant: str, weight: float) -> tuple[Account, bool]:
        """Return the tenant's account, and whether it is new."""
        account = self._by_tenant.get(tenant)
        if account is not None:
            account.weight = min(account.weight, weight)
            return account, False
        account = self._by_tenant[tenant] = Account(len(self.all), weight=weight)
        self.all.append(account)
        return account, True

    def values(self) -> list[float]:
        step = self.step
        return [account.received + account.per_step * (step - account.since_step) for account in self.all]

    def counter(self, account: Account) -> float:
        return account.value(self.step) + account.lifts

    def waiting_counters(self) -> list[float]:
        return [self.counter(account) for account in self.all if account.waiting]

    def lift(self, account: Account) -> None:
        """Lift the counter (VTC, algorithm 2, lines 8 to 13). Called before a tenant with nothing waiting enqueues."""
        waiting = self.waiting_counters()
        level = min(waiting) if waiting else None if self._last_left is None else self.counter(self._last_left)
        if level is not None:
            account.lifts += max(0.0, level - self.counter(account))

    def left_queue(self, account: Account) -> None:
        self._last_left = account


class PairBounds:
    """The worst pair of tenants over all intervals: Theorems 4.4 and 4.9, exactly and in one pass.

    Let W_f(t) be all that f received by t. For the ordered pair (f, g), the worst interval in which f is backlogged is
    the greatest rise of W_g - W_f above its lowest value since f's backlog began. Between two events of f or g that
    difference is linear in the steps. So comparing before and after each of their events misses nothing, and an event
    costs one comparison with each other tenant.
    """

    def __init__(self) -> None:
        self.backlogged_worst = 0.0
        """Worst |W_f - W_g| while both are backlogged (4.4)."""
        self.any_worst = 0.0
        """Worst W_g - W_f while f is backlogged (4.9)."""
        self.checked = 0
        self._backlogged: list[bool] = []
        self._lows: list[_Row] = []
        """[f][g]: the lowest W_g - W_f since f's backlog began."""
        self._joint_lows: list[_Row] = []
        """[f][g]: the same, since the later of the two backlogs began."""

    def add_tenant(self) -> None:
        """Add a tenant."""
        for rows in (self._lows, self._joint_lows):
            for row in rows:
                row.append(0.0)
            rows.append([0.0] * (len(rows) + 1))
        self._backlogged.append(False)

    def begin(self, f: int, received: Sequence[float]) -> None:
        """Begin f's backlog. `received`: what each tenant has received by now."""
        self._backlogged[f] = True
        own = received[f]
        self._lows[f] = [other - own for other in received]
        for g, other in enumerate(received):
            if self._backlogged[g]:
                self._joint_lows[f][g] = other - own
                self._joint_lows[g][f] = own - other

    def end(self, f: int) -> None:
        """End f's backlog, after a `compare` of f."""
        self._backlogged[f] = False

    def compare(self, f: int, received: Sequence[float]) -> None:
        """Compare f with each other tenant, before and after each event that changes what f receives."""
        own, is_backlogged = received[f], self._backlogged[f]
        lows, joint_lows, backlogged = self._lows[f], self._joint_lows[f], self._backlogged
        self.checked += len(received) - 1
        for g, other in enumerate(received):
            if g == f:
                continue
            ahead = other - own
            if is_backlogged:
                self._rises(lows, g, ahead)
            if backlogged[g]:
                self._rises(self._lows[g], f, -ahead)
                if is_backlogged:
                    self._rises_jointly(joint_lows, g, ahead)
                    self._rises_jointly(self._joint_lows[g], f, -ahead)

    def _rises(self, lows: _Row, at: int, ahead: float) -> None:
        if ahead < lows[at]:
            lows[at] = ahead
        elif ahead - lows[at] > self.any_worst:
            self.any_worst = ahead - lows[at]

    def _rises_jointly(self, lows: _Row, at: int, ahead: float) -> None:
        if ahead < lows[at]:
            lows[at] = ahead
        elif ahead - lows[at] > self.backlogged_worst:
            self.backlogged_worst = ahead - lows[at]


@dataclass(slots=True)
class _Worst:
    amount: float = 0.0
    checked: int = 0

    def note(self, amount: float) -> None:
        self.checked += 1
        self.amount = max(self.amount, amount)


class TheoremMonitor(Observer):
    """Works for any policy; `bounds()` shows which theorems it breaks."""

    def __init__(self, service: WeightedTokens) -> None:
        self._service = service
        self._gave_up = False
        self._accounts = Accounts()
        self._pairs = PairBounds()
        self._counters, self._dispatch, self._share = _Worst(), _Worst(), _Worst()
        self._input_max = 0.0
        self._resident = 0.0
        self._resident_max = 0.0
        self._idle_arrivals: dict[str, tuple[Account, float]] = {}
        """Maps a request to its client and to the service that the other clients had received when it arrived."""
        self._backlogs: dict[int, list[float]] = {}
        """Maps a client's number to the service that each client had received when this client's backlog began."""
        self._gap_began = 0.0
        self._gap_max = 0.0

    # ── Events of the engine ─────────────────────────────────────────────────────────────────────────────────────────

    def on_enqueued(self, request: SimRequest, now_s: float) -> None:
        if self._gave_up:
            return
        account, is_new = self._accounts.of(request.tenant, request.weight)
        if is_new:
            self._pairs.add_tenant()
            self._gave_up = len(self._accounts.all) > TENANTS_MAX
            self.wants_steps = not self._gave_up
        if not account.waiting:
            self._accounts.lift(account)
            received = self._accounts.values()
            self._pairs.begin(account.number, received)
            self._backlogs[account.number] = received
            if not account.running:
                others = sum(received) - received[account.number]
                self._idle_arrivals[request.request_id] = (account, others)
        account.waiting += 1
        self._check_counters()

    def on_attempted(self, now_s: float) -> None:
        """Note the service since the last attempt: a request may have waited so long for this one."""
        if self._gave_up:
            return
        received = sum(self._accounts.values())
        self._gap_max = max(self._gap_max, received - self._gap_began)
        self._gap_began = received

    def on_admitted(self, request: SimRequest, now_s: float) -> None:
        if self._gave_up:
            return
        weight = request.weight
        charge = self._service.input_weight * request.arrival.input_tokens / weight
        self._input_max = max(self._input_max, charge)
        self._resident += self._largest(request)
        self._resident_max = max(self._resident_max, self._resident)
        account, _ = self._accounts.of(request.tenant, weight)
        received = self._compare_pairs(account)
        self._note_dispatch(request, received)
        account.waiting -= 1
        if not account.waiting:
            self._end_backlog(account, received)
        account.running += 1
        account.add(charge, self._service.output_weight / weight, self._accounts.step)
        self._compare_pairs(account)
        self._check_counters()

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        if self._gave_up:
            return
        for request in requests:
            if request.arrival.output_tokens:
                account, _ = self._accounts.of(request.tenant, request.weight)
                account.add(self._service.output_weight / request.weight, 0.0, self._accounts.step)
                self._compare_pairs(account)
        self._check_counters()

    def on_decoded(self, steps: int, now_s: float) -> None:
        if self._gave_up:
            return
        self._accounts.step += steps
        self._check_counters()

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        if self._gave_up:
            return
        self._resident -= self._largest(request)
        account, _ = self._accounts.of(request.tenant, request.weight)
        self._compare_pairs(account)
        account.running -= 1
        account.add(0.0, -self._service.output_weight / request.weight, self._accounts.step)

    # ── Checks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _largest(self, request: SimRequest) -> float:
        """Return the request's part of w_q M."""
        arrival = request.arrival
        return self._service.output_weight * (arrival.input_tokens + arrival.output_tokens) / request.weight

    def _compare_pairs(self, account: Account) -> list[float]:
        received = self._accounts.values()
        self._pairs.compare(account.number, received)
        return received

    def _check_counters(self) -> None:
        counters = self._accounts.waiting_counters()
        if len(counters) > 1:
            self._counters.note(max(counters) - min(counters))

    def _note_dispatch(self, request: SimRequest, received: Sequence[float]) -> None:
        came = self._idle_arrivals.pop(request.request_id, None)
        if came is not None:
            account, before = came
            self._dispatch.note(sum(received) - received[account.number] - before)

    def _end_backlog(self, account: Account, received: Sequence[float]) -> None:
        self._accounts.left_queue(account)
        self._pairs.end(account.number)
        before = self._backlogs.pop(account.number)
        before += [0.0] * (len(received) - len(before))
        given = [now - then for now, then in zip(received, before, strict=True)]
        clients = zip(self._accounts.all, given, strict=True)
        active = [client for client, amount in clients if amount or client.waiting or client is account]
        total = sum(given[client.number] * client.weight for client in active)
        self._share.note(total / sum(client.weight for client in active) - given[account.number])

    # ── Results ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def bounds(self) -> dict[str, dict[str, Any]]:
        """Return {theorem: {worst, bound, fraction, held, checked}} in service units over weight. `checked`: the number
        of comparisons. Empty if there were more than TENANTS_MAX clients."""
        if self._gave_up:
            return {}
        unit, clients = max(self._input_max, self._resident_max), len(self._accounts.all)
        gap = 2 * max(clients - 1, 0) * unit + self._gap_max
        return {
            "4.3": _result(self._counters.amount, unit, self._counters.checked),
            "4.4": _result(self._pairs.backlogged_worst, 2 * unit, self._pairs.checked),
            "4.9": _result(self._pairs.any_worst, 4 * unit, self._pairs.checked),
            "4.11": _result(self._dispatch.amount, gap, self._dispatch.checked),
            "4.13": _result(self._share.amount, 4 * unit, self._share.checked),
        }


def _result(worst: float, bound: float, checked: int) -> dict[str, Any]:
    return {
        "worst": worst,
        "bound": bound,
        "fraction": worst / bound if bound else None,
        "held": worst <= bound * (1 + _ROUNDING),
        "checked": checked,
    }
