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
exact, not sampled (pair_bounds.py). An event costs one comparison with each other client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.policies.service import WeightedTokens
from headgate.simulator.engines.interface import Observer
from headgate.simulator.measures.accounts import Account, Accounts
from headgate.simulator.measures.pair_bounds import PairBounds
from headgate.simulator.requests import SimRequest

TENANTS_MAX = 128
"""With more tenants a run is not monitored: the pairs would cost more than the run."""
ROUNDING = 1e-9
"""Sums of the same charges in another order differ by less than this, relative to the bound."""


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

    def enqueued(self, request: SimRequest, now_s: float) -> None:
        if self._gave_up:
            return
        account, is_new = self._accounts.of(request.tenant, request.weight)
        if is_new:
            self._pairs.add_tenant()
            self._gave_up = len(self._accounts.all) > TENANTS_MAX
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

    def attempted(self, now_s: float) -> None:
        """Note the service since the last attempt: a request may have waited so long for this one."""
        if self._gave_up:
            return
        received = sum(self._accounts.values())
        self._gap_max = max(self._gap_max, received - self._gap_began)
        self._gap_began = received

    def admitted(self, request: SimRequest, now_s: float) -> None:
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

    def prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        if self._gave_up:
            return
        for request in requests:
            if request.arrival.output_tokens:
                account, _ = self._accounts.of(request.tenant, request.weight)
                account.add(self._service.output_weight / request.weight, 0.0, self._accounts.step)
                self._compare_pairs(account)
        self._check_counters()

    def decoded(self, steps: int, now_s: float) -> None:
        if self._gave_up:
            return
        self._accounts.step += steps
        self._check_counters()

    def finished(self, request: SimRequest, now_s: float) -> None:
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
        "held": worst <= bound * (1 + ROUNDING),
        "checked": checked,
    }
