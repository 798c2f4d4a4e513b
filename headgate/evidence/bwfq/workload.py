"""The workload of the BWFQ paper as far as the paper gives it. Every choice that it leaves open is a named constant.

Source: BWFQ (2025), section 3.6 (rates, service times, bursts, token rates) and 4.1 (80 workers, 300 s). Given:
- interactive tenants send 6 to 12 requests per second of 50 to 120 ms and earn 15 to 30 tokens per second, with
  occasional spikes;
- batch tenants send 0.2 to 0.5 requests per second of 8 to 15 s, earn 0.8 to 2 tokens per second, and send bursts of
  40 to 150 requests with probability 60 to 90 %.
Not given: the number of tenants, when a burst can come and how long it takes to arrive, how a load is set, and how
large a spike is. If the probability holds for each arrival, the bursts of one batch tenant alone need three times the
80 workers. So here each tenant has a chance of a burst at fixed intervals, and batch rates are scaled to the load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random

from dispatcher.policies.clocks import Share
from headgate.simulator.gates.cluster import ClusterRequest

INTERACTIVE, BATCH = "interactive", "batch"
SERVICE_S = {INTERACTIVE: (0.05, 0.12), BATCH: (8.0, 15.0)}
MEAN_S = {kind: (low + high) / 2 for kind, (low, high) in SERVICE_S.items()}
"""The gate's estimate of a request's cost, in worker-seconds. It learns the true cost when the request ends."""
RATES_PER_S = {INTERACTIVE: (6.0, 12.0), BATCH: (0.2, 0.5)}
CREDITS_PER_S = {INTERACTIVE: (15.0, 30.0), BATCH: (0.8, 2.0)}
BURSTS_P = {INTERACTIVE: (0.05, 0.10), BATCH: (0.60, 0.90)}
BURST = (40, 150)
BURST_OVER_S = 20.0
"""Our choice: a burst arrives evenly within so many seconds."""
SPIKE = (2, 5)
"""Our choice: requests at once in a spike of an interactive tenant."""
BURST_EVERY_S = 50.0
"""The distance of the bursts in Figure 6."""
BUCKET_S = 1.0
"""Our choice: the depth of a bucket, in seconds of its rate. The paper's buckets have no limit."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load`: offered work over workers. `in_step`: all batch tenants have their bursts at the same moments.
    `thinned`: a factor on the rates of interactive tenants and on all credits, for many small tenants."""

    load: float = 0.6
    workers: int = 80
    interactive: int = 10
    batch: int = 2
    duration_s: float = 300.0
    in_step: bool = False
    thinned: float = 1.0


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant with drawn values: requests and credits per second, `burst_p` between 0 and 1."""

    name: str
    kind: str
    rate_per_s: float
    burst_p: float
    credits_per_s: float


@dataclass(frozen=True, slots=True)
class PaperWorkload:
    scenario: Scenario
    requests: Sequence[ClusterRequest]
    senders: Sequence[Sender]

    def credits(self) -> dict[str, Share]:
        """Return the shares as the paper gives them: base rates in requests per second."""
        return {sender.name: Share(rate_per_s=sender.credits_per_s) for sender in self.senders}

    def guarantees(self) -> dict[str, Share]:
        """Return the same rates in worker-seconds per second, with buckets of BUCKET_S."""
        rates = {sender.name: sender.credits_per_s * MEAN_S[sender.kind] for sender in self.senders}
        return {name: Share(rate_per_s=rate, burst=rate * BUCKET_S) for name, rate in rates.items()}


def is_interactive(request: ClusterRequest) -> bool:
    return request.tenant.startswith(INTERACTIVE)


def is_batch(request: ClusterRequest) -> bool:
    return request.tenant.startswith(BATCH)


def paper_workload(scenario: Scenario, seed: int) -> PaperWorkload:
    """Draw the workload. Raises ValueError if the interactive tenants alone need more than the load."""
    random = Random(seed)
    interactive = [_drawn(random, INTERACTIVE, number, scenario) for number in range(scenario.interactive)]
    batch = [_drawn(random, BATCH, number, scenario) for number in range(scenario.batch)]
    factor = _batch_factor(scenario, interactive, batch)
    requests: list[ClusterRequest] = []
    for sender in interactive:
        requests += _interactive_requests(random, sender, scenario.duration_s)
    shared_phase = random.random()
    for sender in batch:
        phase = shared_phase if scenario.in_step else random.random()
        requests += _batch_requests(random, sender, scenario.duration_s, factor, phase)
    requests.sort(key=attrgetter("arrival_s"))
    return PaperWorkload(scenario, requests, [*interactive, *batch])


def _drawn(random: Random, kind: str, number: int, scenario: Scenario) -> Sender:
    rate = random.uniform(*RATES_PER_S[kind]) * (scenario.thinned if kind == INTERACTIVE else 1.0)
    burst_p = random.uniform(*BURSTS_P[kind])
    return Sender(f"{kind}-{number}", kind, rate, burst_p, random.uniform(*CREDITS_PER_S[kind]) * scenario.thinned)


def _batch_factor(scenario: Scenario, interactive: Sequence[Sender], batch: Sequence[Sender]) -> float:
    """Return the factor on batch rates with which the offered work equals the load; interactive rates stay."""
    steady = sum(sender.rate_per_s for sender in interactive) * MEAN_S[INTERACTIVE]
    bursty = sum(sender.rate_per_s + sender.burst_p * sum(BURST) / 2 / BURST_EVERY_S for sender in batch)
    offered = scenario.load * scenario.workers
    if offered <= steady:
        raise ValueError(f"the interactive tenants need {steady:.1f} of {offered:.1f} workers: none are left for batch")
    return (offered - steady) / (bursty * MEAN_S[BATCH])


def _poisson(random: Random, rate_per_s: float, end_s: float) -> Iterator[float]:
    at = random.expovariate(rate_per_s)
    while at < end_s:
        yield at
        at += random.expovariate(rate_per_s)


def _interactive_requests(random: Random, sender: Sender, duration_s: float) -> Iterator[ClusterRequest]:
    """Spikes are part of the rate: arrivals come at the rate over the mean number of requests per arrival."""
    mean_size = 1 - sender.burst_p + sender.burst_p * sum(SPIKE) / 2
    for at in _poisson(random, sender.rate_per_s / mean_size, duration_s):
        for _ in range(random.randint(*SPIKE) if random.random() < sender.burst_p else 1):
            yield _request(random, at, sender)


def _batch_requests(
    random: Random, sender: Sender, duration_s: float, factor: float, phase: float
) -> Iterator[ClusterRequest]:
    for at in _poisson(random, sender.rate_per_s * factor, duration_s):
        yield _request(random, at, sender)
    every_s = BURST_EVERY_S / factor
    chances = (every_s * (phase + number) for number in range(int(duration_s / every_s) + 1))
    for at in [at for at in chances if random.random() < sender.burst_p]:
        for _ in range(random.randint(*BURST)):
            spread_at = at + random.random() * BURST_OVER_S
            if spread_at < duration_s:
                yield _request(random, spread_at, sender)


def _request(random: Random, at: float, sender: Sender) -> ClusterRequest:
    service_s = random.uniform(*SERVICE_S[sender.kind])
    return ClusterRequest(at, sender.name, service_s, service_s, MEAN_S[sender.kind])
