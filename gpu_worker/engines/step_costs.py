"""The costs of an engine's steps on this machine: how long a prompt and a token take, and what recomputing evicted
requests really took.

An adapter reports each step: its seconds, and for each request the tokens that were computed before it and in it. The
step of a single request shows the time of n tokens of prefill, or of one decode. The prefill times are fitted by least
squares to the cost model (gpu_worker/policies/preemption.py): seconds = base + a n + b n^2, no coefficient negative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from gpu_worker.policies.admission import Admission
from gpu_worker.policies.preemption import Calibration, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats

_SAMPLES_MAX = 256
_FITTED_EVERY = 8
_LENGTHS_MIN = 3
"""Different lengths that a fit needs."""


def _recent() -> deque[tuple[int, float]]:
    return deque(maxlen=_SAMPLES_MAX)


@dataclass(slots=True)
class StepTimes:
    """The times of an engine's steps, learned from the steps of a single request.

    `prefills`, `decodes`: tokens and seconds of the last _SAMPLES_MAX such steps. `new`: samples since the last
    fit.
    """

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
        return self.new >= _FITTED_EVERY

    def calibrated(self, known: Calibration) -> Calibration:
        """Return `known`, updated by the steps so far where there are enough."""
        self.new = 0
        if self.decodes:
            known = replace(known, decode_s=median(seconds for _, seconds in self.decodes))
        by_length: dict[int, list[float]] = {}
        for tokens, seconds in self.prefills:
            by_length.setdefault(tokens, []).append(seconds)
        if len(by_length) < _LENGTHS_MIN:
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


@dataclass(slots=True)
class _Recompute:
    """A request that computes tokens again. `until_tokens`: how many. `seen_s`: the seconds so far."""

    until_tokens: int
    predicted_s: float | None
    seen_s: float = 0.0


class CostTracker:
    """Follows an engine's steps, and updates `admission.calibration` and `counts`."""

    def __init__(self, admission: Admission, counts: SchedulingStats) -> None:
        self._admission = admission
        self._counts = counts
        self._times = StepTimes()
        self._recomputes: dict[str, _Recompute] = {}

    def begin_recompute(self, request_id: str, until_tokens: int, predicted_s: float | None) -> None:
        """Note a request that lost its KV. `predicted_s`: None if the engine evicted it natively."""
        self._recomputes[request_id] = _Recompute(until_tokens, predicted_s)

    @property
    def recomputing(self) -> bool:
        """Whether a request is being recomputed. If not, only steps of a single request are worth reporting."""
        return bool(self._recomputes)

    def gone(self, request_id: str) -> None:
        self._recomputes.pop(request_id, None)

    def step(self, seconds: float, computed: Mapping[str, tuple[int, int]]) -> None:
        """Note a step. `computed`: by request, the tokens computed before this step and in it."""
        if len(computed) == 1:
            ((request_id, (before, tokens)),) = computed.items()
            self._times.note(request_id, tokens, before, seconds)
            if self._times.worth_fitting:
                self._admission.calibration = self._times.calibrated(self._admission.calibration)
        total = sum(tokens for _, tokens in computed.values())
        for request_id in [name for name in self._recomputes if name in computed]:
            self._charge_recompute(request_id, *computed[request_id], seconds / max(1, total))

    def calibrate(self) -> None:
        """Update the calibration now, with the steps so far."""
        self._admission.calibration = self._times.calibrated(self._admission.calibration)

    def _charge_recompute(self, request_id: str, before: int, tokens: int, per_token_s: float) -> None:
        """Charge the request its part of the step: the step's time is divided by its tokens."""
        recompute = self._recomputes[request_id]
        known = max(0, min(before + tokens, recompute.until_tokens) - before)
        self._counts.recomputed_tokens += known
        recompute.seen_s += per_token_s * known
        if before + tokens >= recompute.until_tokens:
            del self._recomputes[request_id]
            self._counts.resumed += 1
            if (predicted_s := recompute.predicted_s) is not None:
                self._counts.record_cost(Strategy.RECOMPUTE, predicted_s=predicted_s, measured_s=recompute.seen_s)
