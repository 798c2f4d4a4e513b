"""WSC, the weighted service counter: the tenant served least goes next, where a request is measured by what is usual
for its application, and what continues an interaction goes before what begins one.

Source: FairServe, section 4.3, equations (2) and (3), Algorithm 1. Counters u_i in requests of the usual size, over the
tenant's weight (the paper's user priority factor is E_i = 1 / weight). Of request r of tenant i, application app, at
stage j, with L_I, L_S, L_O its tokens of input without the system's, of the system's, of output, and N those expected
(expectations.py):

    w = a N_I + b N_S + c N_O                        (2), as of the request's admission
    admission          u_i += E_i (a L_I + b L_S) / w
    an output token    u_i += E_i c / w              (3) in all, when it ends
    next               of the tenants with a request waiting of an interaction under way: arg min u_i, that request;
                       else arg min u_i, its oldest request
    lift               VTC's (vtc.py)

a = 1, b = 2, c = 1 as the paper prints them, "following OpenAI conventions". They look swapped: those conventions, and
the paper's own reason ("processing input tokens can be parallelized and hence is much faster compared to processing the
output tokens"), would have output dearest: 1, 1, 2. `wsc:1,1,2` is that.

Invariant: a request that goes first for its interaction's sake leads the lowest waiting counter by at most LEAD_MAX. So
counters of waiting tenants stay within VTC's bound (its U in these units) + LEAD_MAX, and nobody starves.

Deviations:
- The paper charges all when a request ends: until then its tenant looks unserved and is served again. Here input is
  charged at admission and output as it is generated, as in VTC; the sum is the same.
- Equation (3) sums an interaction's stages when it ends; here each is charged as it is served, with its own w.
- The paper puts interactions of the current batch first without end, so one endless interaction starves everybody. Here
  an interaction is under way from its first admission to its STAGES_FIRST_MAX-th, in the batch or between two stages,
  and goes first only within LEAD_MAX. Beyond either it is not cut: it is served in its tenant's turn.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.expectations import Expectations, Lengths
from gpu_worker.policies.fairness.accounting.interactions import InteractionsInProgress
from gpu_worker.policies.fairness.registry import PolicySpec, register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import QueueRequest, RequestRecord

STAGES_FIRST_MAX = 30
"""The longest interactions of the paper's trace are of 21 to 30 calls."""

LEAD_MAX = 10.0
"""Requests of the usual size over weight. All but 0.6 % of the paper's are of interactions of at most 10 calls."""

TokenWeights = tuple[float, float, float]
"""a, b, c: of an input, a system and an output token."""

PAPER_WEIGHTS: TokenWeights = (1.0, 2.0, 1.0)


class WeightedServiceCounter(VirtualTokenCounter):
    """`service` is what `received` is told in; counters do not depend on it."""

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
        first, lowest = self._interactions.next(), self._by_counter.lowest()
        if first is not None and lowest is not None and first[0] - lowest[0] <= self._lead_max:
            return first[1].request
        return super().peek()

    def _weighed(self, lengths: Lengths) -> float:
        a, b, c = self._weights
        return a * lengths.input_tokens + b * lengths.system_tokens + c * lengths.output_tokens

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        saved = (1.0 - self.cached_fraction) * self._weights[0] * record.cached_tokens
        weighed = self._weighed(_lengths(record.request, output_tokens)) - saved
        return weighed / record.expected / record.request.weight

    def _price_per_token(self, record: RequestRecord) -> float:
        return self._weights[2] / record.expected / record.request.weight

    def _enqueued(self, record: RequestRecord, new_in_queue: bool) -> None:
        super()._enqueued(record, new_in_queue)
        self._interactions.add_waiting(record)

    def _left_queue(self, record: RequestRecord) -> None:
        super()._left_queue(record)
        self._interactions.remove_waiting(record)

    def _admitted(self, record: RequestRecord) -> None:
        expected = self._expectations.of(record.request.app, record.request.stage)
        record.expected = max(self._weighed(expected), 1.0)
        super()._admitted(record)
        self._interactions.count_admission(record)

    def _returned(self, record: RequestRecord) -> None:
        super()._returned(record)
        self._interactions.undo_admission(record)

    def _refund(self, tenant: str, amount: float) -> None:
        super()._refund(tenant, amount)
        self._interactions.counter_decreased(tenant)

    def _finished(self, record: RequestRecord) -> None:
        request = record.request
        self._expectations.learn(request.app, request.stage, _lengths(request, record.output_tokens))


def _lengths(request: QueueRequest, output_tokens: int) -> Lengths:
    return Lengths(request.input_tokens - request.system_tokens, request.system_tokens, output_tokens)


def _make(spec: PolicySpec) -> WeightedServiceCounter:
    weights = spec.numbers(3) if spec.parameter else PAPER_WEIGHTS
    return WeightedServiceCounter((weights[0], weights[1], weights[2]), spec.service)


register(WeightedServiceCounter, "wsc[:A,B,C]", make=_make)
