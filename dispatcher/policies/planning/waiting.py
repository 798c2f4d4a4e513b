"""The waiting time of a request until its first token: P50 and P90, in seconds.

    P50 = L + max(0, (queue ahead + running rest - B r) / Θ) + P
    P90 = L + max(1.1, q) (P50 - L) + 1.28 σ √n / Θ

- queue ahead: the service of the n requests that are served first; of a request that waits, its input tokens and μ
  output tokens (Backlog). Under a fair order it contains what other queues receive meanwhile (fair_drain.py)
- running rest: the service that the running requests still need; B r: what is left of a full batch when a request of it
  ends, r per request (lengths.py). If fewer than B requests run and wait, the wait is zero
- Θ: `capacity_per_s`, service units per second that the loaded workers deliver while requests wait
- a queue with a guaranteed rate g waits at most own queue / g + (running rest - B r) / Θ: the greater rate serves it
- L: seconds until the plan has the group's model loaded; its error is not that of the queue, so q does not scale it
- P: seconds from admission to the first token
- q: 0.9 quantile of actual over predicted, between 1.1 and 4 (wait_ratios.py)

Source: QLM (SoCC 2024), section 6, equations 1 to 3, and appendix A.1, equations 14, 19 and 20; 1.28 is the 0.9
quantile of the normal distribution of equation 3. Equations 4 and 5 (decode time; the maximum over a group) are not
used: the announced time ends with the first token, and a group's last request has the longest wait anyway.

Deviations from QLM:
- B r is subtracted. When a request is admitted, the requests before it have not ended: the running ones still need r
  each. Equation 2 waits for their last token, so it is B r / Θ too high, which is most of the wait of a few groups.
- Service units (input + 2 x output) instead of output tokens: the gate charges and measures in them, and prompts take
  time too. μ and σ are those of each group, so Backlog adds 4 n σ² to the variance.
- q corrects what the normal distribution leaves out: requests that arrive later and are served first, and a Θ that
  changes. It is kept apart for waits below and above a turnover of the batch, B r / Θ: a shorter wait depends on a few
  lengths, and its ratio on a small denominator, so it would widen the P90 of every long wait.
- No Θ is derived from GPU memory and step times (equations 15 to 18). Without a measured Θ there is no estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from dispatcher.policies.planning.lengths import Lengths
from dispatcher.policies.planning.wait_ratios import RATIO_MIN, WaitRatios
from dispatcher.policies.service import WEIGHTED_TOKENS

NORMAL_P90 = 1.28
OUTPUT_WEIGHT = WEIGHTED_TOKENS.output_weight
OBSERVATIONS_MIN = 20
"""A range of waits with fewer observations takes the quantile of all of them."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Service that is delivered before a request, and its variance.

    Raises ValueError if one is negative or not finite.
    """

    service: float = 0.0
    variance: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.service < inf and 0 <= self.variance < inf):
            raise ValueError(f"service and variance must be finite and not negative, not {self!r}")

    def __add__(self, other: Ahead) -> Ahead:
        return Ahead(self.service + other.service, self.variance + other.variance)


@dataclass(slots=True)
class Backlog:
    """The waiting requests of one group of one queue. Its lengths may change while they wait. O(1) an update."""

    requests: int = 0
    input_tokens: int = 0

    def arrived(self, input_tokens: int) -> None:
        self.requests += 1
        self.input_tokens += input_tokens

    def left(self, input_tokens: int) -> None:
        """Remove a request. Raises ValueError if it cannot have arrived."""
        if self.requests < 1 or self.input_tokens < input_tokens:
            raise ValueError(f"no request of {input_tokens} input tokens waits in {self!r}")
        self.requests -= 1
        self.input_tokens -= input_tokens

    def ahead(self, lengths: Lengths) -> Ahead:
        """Return the service of all of them (equations 3, 19 and 20)."""
        service = self.input_tokens + OUTPUT_WEIGHT * self.requests * lengths.output_mean
        return Ahead(service, self.requests * (OUTPUT_WEIGHT * lengths.output_deviation) ** 2)


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs. `rest`: service that the running requests still need. `kept`: B r, the rest of a full batch.

    `has_room`: fewer than B requests run and wait, so the next one is admitted at once.
    """

    rest: float
    kept: float
    has_room: bool = False

    @property
    def to_free(self) -> float:
        """Service until the batch is as a full batch is in the mean; negative while it fills."""
        return self.rest - self.kept


@dataclass(frozen=True, slots=True)
class WaitingTime:
    """Seconds until the first token."""

    p50_s: float
    p90_s: float


def expected_wait_s(
    ahead: Ahead,
    batch: Batch,
    capacity_per_s: float | None,
    *,
    own: Ahead | None = None,
    guaranteed_per_s: float = 0.0,
) -> float | None:
    """Return the corrected equation 2, at least 0; None without a measured capacity.

    `ahead`: of every queue. `own`: of the tenant's own queue, for its guaranteed rate.
    """
    if not capacity_per_s or not 0 < capacity_per_s < inf:
        return None
    if batch.has_room:
        return 0.0
    waits = [(ahead.service + batch.to_free) / capacity_per_s]
    if own is not None and guaranteed_per_s > 0:
        waits.append(own.service / min(guaranteed_per_s, capacity_per_s) + batch.to_free / capacity_per_s)
    return max(0.0, min(waits))


class WaitingTimes:
    """Announces waiting times and learns from their outcomes, for the queues of one model."""

    def __init__(self) -> None:
        self._all = WaitRatios()
        self._short = WaitRatios()
        self._long = WaitRatios()

    def announce(
        self,
        request_id: str,
        now: float,
        wait_s: float | None,
        ahead: Ahead,
        *,
        capacity_per_s: float | None,
        kept: float,
        until_loaded_s: float = 0.0,
        first_token_s: float = 0.0,
    ) -> WaitingTime | None:
        """Return P50 and P90 of a request that arrives now, and follow it.

        None if `wait_s` or the capacity is unknown, or if the model is never loaded (`until_loaded_s` is infinite).
        `wait_s`: of expected_wait_s. `kept`: B r. Raises ValueError if a time is negative or not a number.
        """
        if wait_s is None or not capacity_per_s or until_loaded_s == inf:
            return None
        if not (wait_s >= 0 and until_loaded_s >= 0 and first_token_s >= 0):
            raise ValueError(f"times must not be negative: {wait_s}, {until_loaded_s}, {first_token_s}")
        queued_s = wait_s + first_token_s
        ratios = self._short if queued_s < kept / capacity_per_s else self._long
        known = ratios if len(ratios) >= OBSERVATIONS_MIN else self._all
        factor = max(RATIO_MIN, known.quantile(now))
        spread_s = NORMAL_P90 * sqrt(ahead.variance) / capacity_per_s
        self.left(request_id)
        for each in (self._all, ratios):
            each.predicted(request_id, queued_s, now + until_loaded_s)
        return WaitingTime(until_loaded_s + queued_s, until_loaded_s + factor * queued_s + spread_s)

    def dispatched(self, request_id: str, now: float) -> None:
        """The request has its first token: learn from it."""
        for each in (self._all, self._short, self._long):
            each.dispatched(request_id, now)

    def left(self, request_id: str) -> None:
        """Forget a request that was cancelled or refused."""
        for each in (self._all, self._short, self._long):
            each.left(request_id)
