"""Predictors of a request's output length, in tokens.

Source: Fairness in Serving Large Language Models (OSDI 2024), sections 4.4 and 5.1: the mean of the tenant's last five
outputs ("predict"), the true length ("oracle"), and the true length with an error ("50%").

Deviations: predictions are rounded to whole tokens. Where nothing is known, for a tenant's first request or when the
request does not state its true length, the prediction is 0: nothing is charged in advance, and VTC with prediction
equals plain VTC there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from random import Random
from typing import Protocol

from gpu_worker.policies.request import QueueRequest

LAST = 5
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
            last = self._last[request.tenant] = deque(maxlen=LAST)
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
