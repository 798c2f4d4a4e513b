"""What an engine's steps tell of this machine: how long a prompt and a token take, and what computing again really
took.

An adapter reports each step: its seconds, and of every request in it the tokens that were computed before and in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_worker.engines.measured.step_times import StepTimes
from gpu_worker.policies.preemption.admission import Admission
from gpu_worker.policies.preemption.costs import Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats


@dataclass(slots=True)
class _Again:
    """A request that computes tokens again: up to which, what that was thought to take, and took so far."""

    until_tokens: int
    predicted_s: float | None
    seen_s: float = 0.0


class Observed:
    """Keeps `admission.calibration` and `figures` up to date."""

    def __init__(self, admission: Admission, figures: SchedulingStats) -> None:
        self._admission = admission
        self._figures = figures
        self._times = StepTimes()
        self._again: dict[str, _Again] = {}

    def recomputes(self, request_id: str, until_tokens: int, predicted_s: float | None) -> None:
        """It lost what was computed of it. `predicted_s`: None where nobody had chosen to."""
        self._again[request_id] = _Again(until_tokens, predicted_s)

    @property
    def waits_for_some(self) -> bool:
        """Whether anybody is computing again: else only a step of one request has anything to tell."""
        return bool(self._again)

    def gone(self, request_id: str) -> None:
        self._again.pop(request_id, None)

    def step(self, seconds: float, computed: Mapping[str, tuple[int, int]]) -> None:
        """`computed`: (tokens computed before, tokens computed in this step), by request."""
        if len(computed) == 1:
            ((request_id, (before, tokens)),) = computed.items()
            self._times.note(request_id, tokens, before, seconds)
            if self._times.worth_fitting:
                self._admission.calibration = self._times.calibrated(self._admission.calibration)
        total = sum(tokens for _, tokens in computed.values())
        for request_id in [name for name in self._again if name in computed]:
            self._computed_again(request_id, *computed[request_id], seconds / max(1, total))

    def calibrate(self) -> None:
        """Now, with what was seen."""
        self._admission.calibration = self._times.calibrated(self._admission.calibration)

    def _computed_again(self, request_id: str, before: int, tokens: int, per_token_s: float) -> None:
        """A step's time is divided by its tokens: what the others in it took is not this one's."""
        again = self._again[request_id]
        known = max(0, min(before + tokens, again.until_tokens) - before)
        self._figures.recomputed_tokens += known
        again.seen_s += per_token_s * known
        if before + tokens >= again.until_tokens:
            del self._again[request_id]
            self._figures.resumed += 1
            if again.predicted_s is not None:
                self._figures.record_cost(Strategy.RECOMPUTE, predicted_s=again.predicted_s, measured_s=again.seen_s)
