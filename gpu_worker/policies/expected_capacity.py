"""The capacity that a worker probably has with a model, from batches that were never full. Pure.

A worker that was full has a measured capacity (capacity.py). Below saturation no worker is ever full, and without any
rate a gate can plan no swap. So the rate of a full batch is extrapolated.

A step of n requests takes a (1 + q n) seconds. The published runs of an A10G have 30.8 ms + 0.55 ms n, so q is 0.018.
Each request gets the same service in a step, so n requests get

    r(n) = v n / (1 + q n)        service units per second

For a known q the worker's history gives v: the service divided by the sum of t n / (1 + q n) over all times t with n
requests. This holds for any mix of batch sizes, and the prompts of an interval spoil it less than they would a line
through single rates. q is one of RATIOS. Each of them has a probability: the prior's, times the likelihood of the
intervals' services (normal errors of unknown size, with a variance in proportion to the request-seconds). Prompts are
read between the steps, so they count in q as well.

The result is the mean of r(slots) over the ratios. It is not the harmonic mean, which gives the expected seconds of a
unit of service, because too little is worse than too much. With a quarter of the rate, plans believe that the models do
not fit, and leave one out. In a scene of benchmarks/results/expected_capacity.md a tenant then had 6 % in time. It had
90 % with four times the rate, and 96 % with the right one.

The prior of q is log-normal. Its median and spread are those of seven engines and lengths of requests, for which q is
0.010 to 0.17 (benchmarks/expected_capacity.py; benchmarks/results/expected_capacity.md has the errors).

A request's prompt is served within a step, and its answer over many. So the service of a running request begins with a
rate that it does not keep, and `SettledService` counts a prompt when its request has ended. Without this a worker
expects up to nine times too much in its first seconds, and with large batches half of the rate for a minute, because
prompts look like noise of the steps.

Memory: two sums for each ratio, and three more. Old intervals fade with MEMORY. Intervals with impossible numbers are
left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

RATIOS: tuple[float, ...] = tuple(0.0025 * 2.0**power for power in range(9))
"""The possible values of q."""
RATIO_MEDIAN, RATIO_FACTOR = 0.05, 3.0
"""The prior: the median of q, and the factor of one standard deviation."""
MEMORY = 120
"""An interval counts by 1 - 1 / MEMORY for each later one: with one a second, for about two minutes of work."""
ERROR, ERROR_INTERVALS = 0.2, 4
"""The prior of the intervals' errors: this part of their service, as if so many intervals had shown it."""
INTERVAL_S = 1.0
"""Intervals with fewer request-seconds are put together."""
SILENT_S = 10.0
"""After so many seconds without any service the engine hangs, and they are left out. A prompt takes less."""
SERVICE_MAX, SECONDS_MAX = 1e12, 1e6
"""More than this in an interval is a mistake."""

_PRIOR = tuple(-(log(ratio / RATIO_MEDIAN) ** 2) / 2 / log(RATIO_FACTOR) ** 2 for ratio in RATIOS)
"""The logarithms of the prior probabilities, up to a constant."""


@dataclass(eq=False)
class FillTimes:
    """Counts for how long each number of requests ran. Times are monotonic seconds."""

    _running: int = 0
    _since_s: float = 0.0
    _times_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    def set_running(self, running: int, now_s: float) -> None:
        """Note that so many requests run from now on."""
        if self._running and now_s > self._since_s:
            self._times_s[self._running] += now_s - self._since_s
        self._running, self._since_s = running, now_s

    def take(self, now_s: float) -> dict[int, float]:
        """Return the seconds with each number of requests since the last call, without those with none."""
        self.set_running(self._running, now_s)
        taken = dict(self._times_s)
        self._times_s.clear()
        return taken


@dataclass(eq=False)
class SettledService:
    """Counts the service of a worker without the prompts of the requests that run now."""

    _settled: float = 0.0

    def take(self, served: float, prompts: float) -> float:
        """Return the service since the last call. `served`: all service units so far. `prompts`: those of the prompts
        of running requests. A prompt of which a part was cached counts too much while its request runs, and nothing is
        taken back for it."""
        before, self._settled = self._settled, max(self._settled, served - prompts)
        return self._settled - before


@dataclass(eq=False)
class ExpectedCapacity:
    """Extrapolates the service per second of a full batch for one model of a worker."""

    _times_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _service: float = 0.0
    """The times and the service of the interval that has not ended."""
    _hangs: bool = False
    _intervals: float = 0.0
    _squares: float = 0.0
    """The sum of the squares of the services, each divided by the request-seconds."""
    _products: list[float] = field(default_factory=lambda: [0.0] * len(RATIOS))
    """The same sum of service times t n / (1 + q n), for each ratio."""
    _models: list[float] = field(default_factory=lambda: [0.0] * len(RATIOS))
    """The same sum of the squares of t n / (1 + q n)."""

    def observe(self, times_s: Mapping[int, float], service: float) -> None:
        """Add an interval. `times_s`: the seconds with each number of running requests. `service`: the service units
        that were delivered meanwhile."""
        if not 0 <= service <= SERVICE_MAX or not all(n > 0 and 0 <= t <= SECONDS_MAX for n, t in times_s.items()):
            return
        if self._hangs:
            self._hangs = service == 0
            return
        for running, seconds in times_s.items():
            self._times_s[running] += seconds
        self._service += service
        is_over = self._service > 0 and sum(n * t for n, t in self._times_s.items()) >= INTERVAL_S
        self._hangs = self._service == 0 and sum(self._times_s.values()) > SILENT_S
        if is_over:
            self._add(self._times_s, self._service)
        if is_over or self._hangs:
            self._times_s.clear()
            self._service = 0.0

    def observe_step(self, seconds: float, service: float) -> None:
        """Add one decode step of one request. Against the seconds of real requests it counts little."""
        if 0 < seconds <= SECONDS_MAX and 0 < service <= SERVICE_MAX:
            self._add({1: seconds}, service)

    def service_per_s(self, slots: int) -> float:
        """Return the expected service units per second of a batch of so many requests; 0 while no request has run."""
        if slots < 1 or not self._squares > 0:
            return 0.0
        odds = [self._log_odds(number) for number in range(len(RATIOS))]
        most = max(odds)
        weights = [exp(each - most) for each in odds]
        rates = sum(
            weight * slots / (1 + ratio * slots) * product / model
            for weight, ratio, model, product in zip(weights, RATIOS, self._models, self._products, strict=True)
        )
        return rates / sum(weights)

    def _add(self, times_s: Mapping[int, float], service: float) -> None:
        kept, weight = 1 - 1 / MEMORY, sum(n * t for n, t in times_s.items())
        self._intervals = self._intervals * kept + 1
        self._squares = self._squares * kept + service**2 / weight
        for number, ratio in enumerate(RATIOS):
            model = sum(t * n / (1 + ratio * n) for n, t in times_s.items())
            self._products[number] = self._products[number] * kept + service * model / weight
            self._models[number] = self._models[number] * kept + model**2 / weight

    def _log_odds(self, number: int) -> float:
        """Return the logarithm of the ratio's probability, up to a constant: Student's t for the errors' size."""
        product, model = self._products[number], self._models[number]
        left = max(0.0, self._squares - product**2 / model)
        usual = ERROR_INTERVALS * ERROR**2 * self._squares / self._intervals
        return _PRIOR[number] - (ERROR_INTERVALS + self._intervals - 1) / 2 * log((usual + left) / self._squares)
