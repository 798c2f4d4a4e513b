"""The costs of preemption, tracked from an engine's steps: how long a prompt and a token take on this machine, and what
recomputing evicted requests really took.

An adapter reports each step: its seconds, and for each request the tokens that were computed before it and in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_worker.engines.measured.step_times import StepTimes
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats


@dataclass(slots=True)
class _Recompute:
    """A request that computes tokens again. `until_tokens`: how many. `seen_s`: the seconds so far."""

    until_tokens: int
    predicted_s: float | None
    seen_s: float = 0.0


class CostTracker:
    """Updates `admission.calibration` and `counts`."""

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
