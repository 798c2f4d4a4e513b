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

Predictors (sections 4.4 and 5.1): the mean of the tenant's last five outputs ("predict"), the true length ("oracle"),
and the true length with an error ("50%").

Deviations: those of vtc.py. Predictions are rounded to whole tokens. Where nothing is known, for a tenant's first
request or when the request does not state its true length, the prediction is 0: nothing is charged in advance, and VTC
with prediction equals plain VTC there. A request is predicted once, at its first admission, and keeps the prediction
when it resumes after a preemption. Refunds also happen at the end of a request and not only within a pass, so the lift
level may fall. A tenant that was forgotten at the old level may therefore return below it, by at most the amount of the
refund.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush
from random import Random
from typing import Protocol

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.interface import QueueRequest, RequestRecord
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter

_SLACK = 64
"""Entries that the heap may hold beyond twice the number of timers."""


class StepTimers:
    """Timers that fire at a decode step, at most one for each name. Setting, moving and cancelling are O(log timers)
    amortized; finding that no timer is due is O(1).

    A moved or cancelled timer leaves a stale heap entry, which is dropped when it reaches the top or when stale entries
    outnumber the timers.
    """

    __slots__ = ("_heap", "_steps")

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def set(self, name: str, step: int) -> None:
        """Set or move the timer of a name."""
        self._steps[name] = step
        heappush(self._heap, (step, name))
        if len(self._heap) > 2 * len(self._steps) + _SLACK:
            self._heap = [(due, other) for other, due in self._steps.items()]
            heapify(self._heap)

    def cancel(self, name: str) -> bool:
        """Return whether the name had a timer."""
        return self._steps.pop(name, None) is not None

    def pop_due(self, by_step: int) -> tuple[int, str] | None:
        """Remove and return the earliest timer due at `by_step` or before, ties by name; None if no timer is due."""
        heap = self._heap
        while heap and heap[0][0] <= by_step:
            step, name = heappop(heap)
            if self._steps.get(name) == step:
                del self._steps[name]
                return step, name
        return None


_LAST = 5
"""Outputs of a tenant from which its next one is predicted."""

TENANTS_KEPT_MAX = 10_000
"""Tenants with remembered outputs. Beyond it, the tenant without an ended request for the longest time
restarts."""


class LengthPredictor(Protocol):
    def predict(self, request: QueueRequest) -> int:
        """Return the predicted output length in tokens, not negative."""

    def learn(self, request: QueueRequest, output_tokens: int) -> None:
        """Record the final output length of a request that ended."""


class MeanOfLast:
    """The mean of the tenant's last five outputs. An aborted request counts with the tokens that it generated, because
    those are what the tenant was charged for."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, deque[int]] = OrderedDict()

    def predict(self, request: QueueRequest) -> int:
        last = self._last.get(request.tenant)
        return round(sum(last) / len(last)) if last else 0

    def learn(self, request: QueueRequest, output_tokens: int) -> None:
        last = self._last.get(request.tenant)
        if last is None:
            last = self._last[request.tenant] = deque(maxlen=_LAST)
        last.append(output_tokens)
        self._last.move_to_end(request.tenant)
        if len(self._last) > TENANTS_KEPT_MAX:
            self._last.popitem(last=False)


class TrueLength:
    """The true output length, as the request states it."""

    def predict(self, request: QueueRequest) -> int:
        return request.output_tokens or 0

    def learn(self, request: QueueRequest, output_tokens: int) -> None:
        """Do nothing: the true length is known beforehand."""


class NoisyLength(TrueLength):
    """The true length times a factor drawn uniformly from 1 - within to 1 + within, 0 < within <= 1."""

    def __init__(self, within: float, random: Random) -> None:
        self._within = within
        self._random = random

    def predict(self, request: QueueRequest) -> int:
        return round((request.output_tokens or 0) * self._random.uniform(1 - self._within, 1 + self._within))


class PredictedTokenCounter(VirtualTokenCounter):
    def __init__(self, predictor: LengthPredictor, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._predictor = predictor
        self._passes_prediction = StepTimers()
        """The step at which each running request passes its prediction; only used if h is linear."""

    def steps_of_head(self) -> float:
        return 0

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
