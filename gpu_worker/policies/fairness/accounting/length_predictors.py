"""How long an answer will be: guesses of a request's output length, in tokens.

Source: Fairness in Serving Large Language Models (OSDI 2024), sections 4.4 and 5.1: the mean of the tenant's last five
("predict"), the true length ("oracle"), and the true length within a margin ("50%").

Deviations: guesses are whole tokens, rounded. Where nothing is known, of a tenant's first request or of a length that
nobody handed in, the guess is 0: nothing is charged beforehand, and VTC with prediction is plain VTC there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from random import Random
from typing import Protocol

from gpu_worker.policies.request import QueueRequest

LAST = 5
"""Output lengths of a tenant that its next one is guessed from."""

TENANTS_KEPT_MAX = 10_000
"""Tenants whose last lengths are kept; beyond it, those longest without a request that ended start anew."""


class LengthPredictor(Protocol):
    def predict(self, request: QueueRequest) -> int:
        """Tokens, not negative."""

    def learn(self, request: QueueRequest, output_tokens: int) -> None:
        """The request has ended with so many."""


class MeanOfLast:
    """Of the tenant's last five, aborted ones with what they had generated: no more was paid for."""

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
    """What the request says of itself."""

    def predict(self, request: QueueRequest) -> int:
        return request.output_tokens or 0

    def learn(self, request: QueueRequest, output_tokens: int) -> None:
        """It knows already."""


class NoisyLength(TrueLength):
    """The true length times a number drawn evenly from 1 - within to 1 + within, 0 < within <= 1."""

    def __init__(self, within: float, random: Random) -> None:
        self._within = within
        self._random = random

    def predict(self, request: QueueRequest) -> int:
        return round((request.output_tokens or 0) * self._random.uniform(1 - self._within, 1 + self._within))
