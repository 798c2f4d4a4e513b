"""VTC with length prediction: charges the predicted output at admission, before it is generated.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 4.4 and Algorithm 3 (Appendix B.3). Counters,
units, choice and lift as in vtc.py. With p input tokens, q output tokens so far and q' predicted for request r of
tenant k:

    admission             c_k += h(p, q') / w_k                                  (lines 24 and 25)
    an output token       c_k += (h(p, q) - h(p, q - 1)) / w_k where q > q'      (lines 33 to 35)
    the end               c_k += (h(p, q) - h(p, q')) / w_k where q < q'         (lines 36 and 37)

Invariant: when a request ends, its tenant has been charged h of the true lengths, whatever was predicted. The bounds of
Lemma 4.3 and Theorem 4.4 are not claimed, because a counter runs ahead of the service received.

How decode steps are charged in O(1): where h is linear, a request costs nothing until its output passes the prediction
and a constant per step from then on. A timer holds the step at which each running request passes its prediction; a
report of several steps is split at the timers that are due.

Deviations: those of vtc.py. A request is predicted once, at its first admission, and keeps the prediction when it
resumes after a preemption. Refunds also happen at the end of a request and not only within a pass, so the lift level
may fall. A tenant that was forgotten at the old level may therefore return below it, by at most the amount of the
refund.
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
        self._passes_prediction = StepTimers()
        """The step at which each running request passes its prediction; only used if h is linear."""

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        return super()._price(record, max(output_tokens, record.predicted or 0))

    def _charge_prompt(self, record: RequestRecord) -> None:
        if record.predicted is None:
            record.predicted = self._predictor.predict(record.request)
        super()._charge_prompt(record)

    def _entered_batch(self, record: RequestRecord) -> None:
        if self._tokens_prepaid(record) > 0 and self._linear:
            self._passes_prediction.set(record.request.request_id, self._steps + self._tokens_prepaid(record))
        else:
            super()._entered_batch(record)

    def _left_batch(self, record: RequestRecord) -> None:
        if not self._passes_prediction.cancel(record.request.request_id):
            super()._left_batch(record)

    def _charge_output(self, record: RequestRecord, before: int) -> None:
        super()._charge_output(record, before)
        if self._passes_prediction.cancel(record.request.request_id):
            self._entered_batch(record)

    def _charge_steps(self, steps: int) -> None:
        while (due := self._passes_prediction.pop_due(self._steps)) is not None:
            self._counters.step, request_id = due
            super()._entered_batch(self._running[request_id])
        super()._charge_steps(steps)

    def _on_finish(self, record: RequestRecord) -> None:
        if self._tokens_prepaid(record) > 0:
            tenant, output_tokens = record.request.tenant, record.output_tokens
            self._refund(tenant, self._price(record, output_tokens) - super()._price(record, output_tokens))
        self._predictor.learn(record.request, record.output_tokens)

    @staticmethod
    def _tokens_prepaid(record: RequestRecord) -> int:
        """Return the output tokens charged in advance; not positive once the prediction is passed."""
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
