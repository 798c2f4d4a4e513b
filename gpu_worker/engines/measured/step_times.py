"""The times of an engine's steps on this machine, learned from the steps of a single request.

Such a step shows the time of n tokens of prefill, or of one decode. The prefill times are fitted by least squares to
the cost model (gpu_worker/policies/preemption.py): seconds = base + a n + b n^2, no coefficient negative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from gpu_worker.policies.preemption import Calibration

SAMPLES_MAX = 256
FITTED_EVERY = 8
LENGTHS_MIN = 3
"""Different lengths that a fit needs."""


def _recent() -> deque[tuple[int, float]]:
    return deque(maxlen=SAMPLES_MAX)


@dataclass(slots=True)
class StepTimes:
    """`prefills`, `decodes`: tokens and seconds of the last SAMPLES_MAX such steps. `new`: samples since the last
    fit."""

    prefills: deque[tuple[int, float]] = field(default_factory=_recent)
    decodes: deque[tuple[int, float]] = field(default_factory=_recent)
    new: int = 0
    _pieces: tuple[str, int] = ("", 0)
    """The last prompt, and how many of its tokens were computed, all in steps without other requests."""
    _pieces_s: float = 0.0

    def note(self, request_id: str, tokens: int, context: int, seconds: float) -> None:
        """Note a step that computed `tokens` of one request, after `context` computed before. A prompt in pieces counts
        as one prefill of all of them, unless another request was in one of the steps."""
        if tokens == 1:
            self.decodes.append((1, seconds))
            self.new += 1
        elif context == 0 or (request_id, context) == self._pieces:
            self._pieces_s = seconds + (self._pieces_s if context else 0.0)
            self._pieces = request_id, context + tokens
            self.prefills.append((context + tokens, self._pieces_s))
            self.new += 1

    @property
    def worth_fitting(self) -> bool:
        return self.new >= FITTED_EVERY

    def calibrated(self, known: Calibration) -> Calibration:
        """Return `known`, updated by the steps so far where there are enough."""
        self.new = 0
        if self.decodes:
            known = replace(known, decode_s=median(seconds for _, seconds in self.decodes))
        by_length: dict[int, list[float]] = {}
        for tokens, seconds in self.prefills:
            by_length.setdefault(tokens, []).append(seconds)
        if len(by_length) < LENGTHS_MIN:
            return known
        base, linear, square = fit([(tokens, median(seconds)) for tokens, seconds in by_length.items()])
        return replace(known, prefill_base_s=base, prefill_per_token_s=linear, prefill_per_token2_s=square)


def fit(samples: Sequence[tuple[int, float]], degree: int = 2) -> tuple[float, float, float]:
    """Return base, a, b of the least squares fit. Terms above `degree`, and terms that would be negative, are 0.

    The error is relative: otherwise a prompt ten times as long would weigh a hundred times as much.
    """
    tokens = np.array([tokens for tokens, _ in samples], dtype=float)
    seconds = np.array([seconds for _, seconds in samples], dtype=float)
    powers = list(range(degree + 1))
    while powers:
        columns = np.stack([tokens**power / seconds for power in powers], axis=1)
        found, *_ = np.linalg.lstsq(columns, np.ones(len(tokens)), rcond=None)
        if (found >= 0).all():
            values = dict(zip(powers, found.tolist(), strict=True))
            return values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0)
        powers.pop(int(np.argmin(found * tokens.max() ** np.array(powers))))
    return 0.0, 0.0, 0.0
