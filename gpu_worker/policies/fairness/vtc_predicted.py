"""VTC with length prediction: the answer that is expected is charged before it is generated.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 4.4 and Algorithm 3 (Appendix B.3). Counters,
units, pick and lift as in vtc.py; with p input tokens, q so far and q' predicted for request r of tenant k:

    admission             c_k += h(p, q') / w_k                                  (lines 24 and 25)
    an output token       c_k += (h(p, q) - h(p, q - 1)) / w_k where q > q'      (lines 33 to 35)
    the end               c_k += (h(p, q) - h(p, q')) / w_k where q < q'         (lines 36 and 37)

Invariant: at the end of a request its tenant was charged h of its true lengths, whatever was predicted. The bounds of
Lemma 4.3 and Theorem 4.4 are not claimed of it: a counter runs ahead of what was received.

How tokens are charged in O(1) a stretch of decode steps: where h is linear, a request costs nothing until it passes its
prediction and a constant each step after that; the agenda holds the step at which each running request does, and a
stretch that goes past it is cut there.

Deviations: those of vtc.py. A request is predicted once, when it is first admitted; resumed after a preemption it keeps
that prediction. Charges are returned at the end of requests and not only within a pass, so the level to which tenants
are lifted may fall: a tenant forgotten at the old level may find the new one lower, by no more than what was returned.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.length_predictors import (
    LengthPredictor,
    MeanOfLast,
    NoisyLength,
    TrueLength,
)
from gpu_worker.policies.fairness.accounting.step_timers import StepTimers
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import RequestRecord


class PredictedTokenCounter(VirtualTokenCounter):
    def __init__(self, predictor: LengthPredictor, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._predictor = predictor
        self._passing = StepTimers()
        """When running requests pass their predictions; only where h is linear."""

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        return super()._price(record, max(output_tokens, record.predicted or 0))

    def _admitted(self, record: RequestRecord) -> None:
        if record.predicted is None:
            record.predicted = self._predictor.predict(record.request)
        super()._admitted(record)

    def _entered_batch(self, record: RequestRecord) -> None:
        if self._tokens_prepaid(record) > 0 and self._linear:
            self._passing.set(record.request.request_id, self._steps + self._tokens_prepaid(record))
        else:
            super()._entered_batch(record)

    def _left_batch(self, record: RequestRecord) -> None:
        if not self._passing.cancel(record.request.request_id):
            super()._left_batch(record)

    def _generated(self, record: RequestRecord, before: int) -> None:
        super()._generated(record, before)
        if self._passing.cancel(record.request.request_id):
            self._entered_batch(record)

    def _decoded(self, steps: int) -> None:
        while (due := self._passing.pop_due(self._steps)) is not None:
            self._counters.step, request_id = due
            super()._entered_batch(self._running[request_id])
        super()._decoded(steps)

    def _finished(self, record: RequestRecord) -> None:
        if self._tokens_prepaid(record) > 0:
            tenant, output_tokens = record.request.tenant, record.output_tokens
            self._refund(tenant, self._price(record, output_tokens) - super()._price(record, output_tokens))
        self._predictor.learn(record.request, record.output_tokens)

    @staticmethod
    def _tokens_prepaid(record: RequestRecord) -> int:
        """Charged, and not generated as of its count."""
        return (record.predicted or 0) - record.output_tokens


register(
    PredictedTokenCounter,
    "vtc-predict",
    make=lambda spec: PredictedTokenCounter(MeanOfLast(), spec.service),
)
register(
    PredictedTokenCounter,
    "vtc-oracle",
    make=lambda spec: PredictedTokenCounter(TrueLength(), spec.service),
)
register(
    PredictedTokenCounter,
    "vtc-noisy:F",
    make=lambda spec: PredictedTokenCounter(NoisyLength(spec.number(most=1.0), spec.random), spec.service),
    example="vtc-noisy:0.5",
)
