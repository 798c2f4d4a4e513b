"""How long a request waits: the theory by which the gate announces, and which the evidence checks. Pure.

    W Θ = ahead + running - B r + others(W)        W is 0 if the right side is negative at 0      `batch_wait_s`

- ahead: the service of the requests before this one in its own queue, and of itself
- running: what the running requests still need. A full batch that has run for long needs B r, so both terms cancel;
  a model that is loaded next runs nothing, and its first batch does not wait
- B r: what the running requests need when this one begins; B slots, and r = (μ² + σ²) / 2μ, the expected rest of a
  request that is seen at a random time (renewal theory)
- others(W): what other queues get meanwhile, a straight line over the time for which arrivals are forecast
- Θ: service per second of all slots of the model

This is the mean over all moments of a batch that has run for long. The gate knows more: for how long the running
requests have run. So it counts the ends that a request waits for, n = (ahead + others) / μ, and takes the time of the
nth end (`FullBatch`): requests that are alike and began together, as after a load, end together, batch after batch;
requests that began at any time end at equal intervals in the mean. A batch that begins together computes all its
prompts first, and nothing ends in it meanwhile; one that has run for long computes a prompt at a time. Between these

    t(n) = w (g T + R + √3 s p + (q T - √12 v) m / B) + (1 - w) (n T / B + a O)
    w = 1 - 12 s² / T²    a = 1 - 12 v² / T²    s² = v² + (g + 1) ((1 - q) c T)²
    p = 2 (n - g B) / (B + 1) - 1    m = n - g B - 1
    O = R - ((B - 1) r + T) / B    r = (1 - q) T (1 + c²) / 2

- T: the mean of a request's time in a full batch. q: the part of it in which a batch that begins together computes
  prompts. c: the standard deviation of the outputs over their mean
- g: whole batches before the nth end. m: ends before it in its own batch. Each is replaced by a request, for whose
  prompt the others wait, unless the ages show it already
- R: the mean rest of running requests that began together: T - age until their prompts are computed, then the rest of
  an output. It falls as fast as the age grows if all outputs are equal, and not at all if they are exponential
- v: the standard deviation of the ages. s: that of the ends, as if they were spread evenly around R
- O: the first equation again. All B requests need R each now, and at the nth end one needs T and the others r, because
  the prompts of these are computed

w, a, m and q T - √12 v are at least 0: where ages are spread as evenly as over a whole T, their mean says little about
the next end. Exact for c = q = 0 and equal ages, for one slot with c = 0, and for c = 1 and q = 0.

A model that other models displace has turns. The wait for its turn, the seconds until it is loaded, comes before W.
What does not fit a turn waits for the next one, `with_turns`.

Source: QLM (SoCC 2024), section 6, equations 2 and 3: W = ΣO / Θ, without `running - B r`, which makes the first batch
wait for its own end. Units: service units, seconds.
"""

from __future__ import annotations

from math import ceil, hypot, inf, log, sqrt
from typing import NamedTuple

STAY_MIN_S = 1.0
STEP_DOUBLED_AT = 64.0
"""A decode step of so many requests takes twice as long as that of one. The measured logs of one A10G have 30.8 ms +
0.55 ms for each request, so 56 there; the modelled A100 has about 95."""
_SQRT_3 = sqrt(3.0)
_REST_LEAST = 1 / 16
"""The rest of a batch that runs longer than expected: this part of T."""
_INTERVAL_LEAST = 0.5
"""Requests that began together and are due end at most twice as fast as others."""


def residual(mean: float, variance: float) -> float:
    """Return r, in the unit of the mean; 0 without a mean."""
    return (mean**2 + variance) / (2 * mean) if mean > 0 else 0.0


class FullBatch(NamedTuple):
    """A batch that is kept full. `slots`: B. `full_s`: T, the mean seconds from a request's begin to its end in it.
    `prompts`: q, the part of the requests' service that is of prompts. `variation`: c, the standard deviation of their
    outputs divided by the mean. `age_s`, `ages_s`: mean and standard deviation of the seconds for which the running
    requests have run; 0 for those that begin together."""

    slots: int
    full_s: float
    prompts: float
    variation: float
    age_s: float
    ages_s: float

    def end_s(self, ends: float) -> float:
        """Return the seconds until so many requests have ended and were replaced by others.

        It grows with `ends`, but may fall by up to T / 8 from one batch to the next, where w falls.
        """
        slots, full_s = self.slots, self.full_s
        fluid_s = ends * full_s / slots
        alike = self._together(self.ages_s)
        if not alike:
            return fluid_s
        rest_s, output_s = self._rest_s(), (1.0 - self.prompts) * full_s
        needed_s = (residual(1.0, self.variation**2) * output_s * (slots - 1) + full_s) / slots
        apart_s = max(_INTERVAL_LEAST * fluid_s, fluid_s + alike * (rest_s - needed_s))
        before = max(0, ceil(ends / slots) - 1)
        spread_s = hypot(self.ages_s, sqrt(before + 1) * self.variation * output_s)
        together = self._together(spread_s)
        own = ends - before * slots
        place = 2.0 * own / (slots + 1) - 1.0
        prompts_s = max(0.0, own - 1.0) / slots * max(0.0, self.prompts * full_s - 2.0 * _SQRT_3 * self.ages_s)
        end_s = before * full_s + rest_s + place * min(_SQRT_3 * spread_s, rest_s) + prompts_s
        return together * end_s + (1.0 - together) * apart_s

    def _together(self, spread_s: float) -> float:
        """Return 1 for ends at one time, and 0 for ends that are spread over a whole T."""
        return max(0.0, 1.0 - 12.0 * (spread_s / self.full_s) ** 2)

    def _rest_s(self) -> float:
        """Return R."""
        prompts_s, squared = self.prompts * self.full_s, self.variation**2
        falls = max(0.0, (1.0 - squared) / (1.0 + squared))
        rest_s = self.full_s - min(self.age_s, prompts_s) - falls * max(0.0, self.age_s - prompts_s)
        return max(_REST_LEAST * self.full_s, rest_s)


def batch_wait_s(ahead: float, running: float, batch: float, rest: float, per_s: float) -> float:
    """Return W without other queues. `batch`: B. `rest`: r."""
    return max(0.0, ahead + running - batch * rest) / per_s


def drained_s(own: float, now: float, later: float, per_s: float, *, forecast_s: float) -> float:
    """Return the first T with T x per_s = own + others(T), where others(T) goes from `now` to `later` at `forecast_s`,
    and stays there. `own`: may be negative by what free slots take at once."""
    if own + now <= 0.0:
        return 0.0
    if own + later < per_s * forecast_s:
        return (own + now) / (per_s - (later - now) / forecast_s)
    return (own + later) / per_s


def drain_s(running: int, rest_s: float) -> float:
    """Return how long so many running requests take until the last of them ends, if each would still take `rest_s` in
    the mean beside all others.

    The last of n exponential times is expected after rest_s (1 + 1/2 + ... + 1/n), about rest_s (1 + log n). But steps
    take less with each end: a step of k requests as long as 1 + k / STEP_DOUBLED_AT. The sum of the times between ends,
    each rest_s / k times the step of k over that of n, is about rest_s (1 + log n / (1 + n / STEP_DOUBLED_AT)).
    """
    return rest_s * (1.0 + log(running) / (1.0 + running / STEP_DOUBLED_AT)) if running else 0.0


def with_turns(served_s: float, stay_s: float, absence_s: float) -> float:
    """Return how long `served_s` seconds of service take for a model that is loaded for `stay_s`, and then absent for
    `absence_s`. In the mean, so that the result grows with `served_s`. A stay counts as STAY_MIN_S at least."""
    stay_s = max(stay_s, STAY_MIN_S)
    if stay_s == inf or served_s <= stay_s:
        return served_s
    return served_s + (served_s / stay_s - 1.0) * absence_s
