"""WSC, the weighted service counter: VTC where the cost of a request is relative to what is usual for its application.

A request that continues an interaction is served before a request that starts one.

Source: FairServe, section 4.3, equations (2) and (3), Algorithm 1. The counter u_i of tenant i counts requests of
usual size over the tenant's weight (the paper's user priority factor is E_i = 1 / weight). For request r of tenant i,
application app, at stage j: L_I are its input tokens without the system prompt, L_S its system tokens, L_O its output
tokens, and N the expected ones (expectations.py):

    w = a N_I + b N_S + c N_O                        (2), at the admission of the request
    admission          u_i += E_i (a L_I + b L_S) / w
    an output token    u_i += E_i c / w              (3) in total, when the request ends
    next               of the tenants with a waiting request that continues an interaction: arg min u_i, that request;
                       if there is none, arg min u_i, its oldest request
    lift               as in VTC (vtc.py)

a = 1, b = 2, c = 1 as printed in the paper, "following OpenAI conventions". The last two look swapped: by those
conventions, and by the paper's own reason ("processing input tokens can be parallelized and hence is much faster
compared to processing the output tokens"), output is the most expensive: 1, 1, 2. Use `wsc:1,1,2` for that.

Invariant: a tenant that is preferred for an interaction is at most LEAD_MAX above the lowest waiting counter. The
counters of waiting tenants therefore stay within VTC's bound (its U, in these units) + LEAD_MAX, and no tenant starves.

Deviations:
- The paper charges everything when a request ends, so until then its tenant looks unserved and is served again. Here
  the input is charged at admission and the output while it is generated, as in VTC; the sum is the same.
- Equation (3) sums the stages of an interaction when it ends; here each stage is charged when it is served, with its
  own w.
- The paper prefers the interactions of the current batch without limit, so one endless interaction starves all other
  requests. Here an interaction is in progress from its first to its STAGES_FIRST_MAX-th admission, in the batch or
  between two stages, and is preferred only within LEAD_MAX. Beyond either limit it is served in its tenant's turn.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.expectations import Expectations, RequestLengths
from gpu_worker.policies.fairness.accounting.interactions import InteractionsInProgress
from gpu_worker.policies.fairness.registry import PolicySpec, register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import QueueRequest, RequestRecord

STAGES_FIRST_MAX = 30
"""Admissions. The longest interactions of the paper's trace have 21 to 30 calls."""

LEAD_MAX = 10.0
"""Requests of usual size over weight. Of the paper's requests 99.4 % belong to interactions of at most 10 calls."""

TokenWeights = tuple[float, float, float]
"""a, b, c: the weights of an input, a system and an output token."""

PAPER_WEIGHTS: TokenWeights = (1.0, 2.0, 1.0)


class WeightedServiceCounter(VirtualTokenCounter):
    """`service`: the unit of `received`; the counters do not depend on it."""

    def __init__(
        self,
        weights: TokenWeights = PAPER_WEIGHTS,
        service: ServiceFunction = WEIGHTED_TOKENS,
        *,
        stages_first_max: int = STAGES_FIRST_MAX,
        lead_max: float = LEAD_MAX,
    ) -> None:
        super().__init__(service)
        self._linear = True
        self._weights = weights
        self._lead_max = lead_max
        self._expectations = Expectations()
        self._interactions = InteractionsInProgress(self._counters.value, stages_first_max)

    def peek(self) -> QueueRequest | None:
        preferred, lowest = self._interactions.next(), self._by_counter.lowest()
        if preferred is not None and lowest is not None and preferred[0] - lowest[0] <= self._lead_max:
            return preferred[1].request
        return super().peek()

    def _weighted_sum(self, lengths: RequestLengths) -> float:
        a, b, c = self._weights
        return a * lengths.input_tokens + b * lengths.system_tokens + c * lengths.output_tokens

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        saved = (1.0 - self.cached_fraction) * self._weights[0] * record.cached_tokens
        weighed = self._weighted_sum(_lengths(record.request, output_tokens)) - saved
        return weighed / record.expected / record.request.weight

    def _price_per_token(self, record: RequestRecord) -> float:
        return self._weights[2] / record.expected / record.request.weight

    def _entered_queue(self, record: RequestRecord, new_queue: bool) -> None:
        super()._entered_queue(record, new_queue)
        self._interactions.add_waiting(record)

    def _left_queue(self, record: RequestRecord) -> None:
        super()._left_queue(record)
        self._interactions.remove_waiting(record)

    def _charge_prompt(self, record: RequestRecord) -> None:
        expected = self._expectations.of(record.request.app, record.request.stage)
        record.expected = max(self._weighted_sum(expected), 1.0)
        super()._charge_prompt(record)
        self._interactions.count_admission(record)

    def _refund_charges(self, record: RequestRecord) -> None:
        super()._refund_charges(record)
        self._interactions.undo_admission(record)

    def _refund(self, tenant: str, amount: float) -> None:
        super()._refund(tenant, amount)
        self._interactions.counter_decreased(tenant)

    def _on_finish(self, record: RequestRecord) -> None:
        request = record.request
        self._expectations.learn(request.app, request.stage, _lengths(request, record.output_tokens))


def _lengths(request: QueueRequest, output_tokens: int) -> RequestLengths:
    return RequestLengths(request.input_tokens - request.system_tokens, request.system_tokens, output_tokens)


def _make(spec: PolicySpec) -> WeightedServiceCounter:
    weights = spec.numbers(3) if spec.parameter else PAPER_WEIGHTS
    return WeightedServiceCounter((weights[0], weights[1], weights[2]), spec.service)


register(WeightedServiceCounter, "wsc[:A,B,C]", make=_make)
