"""The workload of the BWFQ paper, as far as it is given, with a name for every choice that it leaves open.

Source: BWFQ (2025), section 3.6 (rates, service times, bursts, token rates) and 4.1 (80 workers, 300 s). Given:
interactive tenants send 6 to 12 requests a second of 50 to 120 ms and earn 15 to 30 tokens a second, with occasional
spikes; batch tenants send 0.2 to 0.5 a second of 8 to 15 s, earn 0.8 to 2, and burst by 40 to 150 requests with
probability 60 to 90 %. Not given: how many tenants there are, when a burst may come and how long it takes to arrive,
how a load is set, how large a spike is. Taken literally as a chance at each arrival, one batch tenant's bursts alone
ask for three times the 80 workers, so something has to be scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Literal

from dispatcher.policies.clocks import Share
from headgate.simulator.gates.cluster import ClusterRequest

INTERACTIVE, BATCH = "interactive", "batch"
SERVICE_S = {INTERACTIVE: (0.05, 0.12), BATCH: (8.0, 15.0)}
MEAN_S = {kind: (low + high) / 2 for kind, (low, high) in SERVICE_S.items()}
"""What the gate is told a request of that kind will cost, in worker-seconds; the truth comes when it ends."""
RATES_PER_S = {INTERACTIVE: (6.0, 12.0), BATCH: (0.2, 0.5)}
CREDITS_PER_S = {INTERACTIVE: (15.0, 30.0), BATCH: (0.8, 2.0)}
BURSTS_P = {INTERACTIVE: (0.05, 0.10), BATCH: (0.60, 0.90)}
BURST = (40, 150)
SPIKE = (2, 5)
"""Requests at once in an interactive tenant's spike. Ours."""
BURST_EVERY_S = 50.0
"""Figure 6 shows bursts about that far apart."""
BUCKET_S = 1.0
"""Depth of a bucket, as so many seconds of its rate. Ours: the paper's is bottomless."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load`: offered work over workers. `bursts`: "timed" is a chance at every so many seconds, "arrivals" at every
    arrival. `burst_over_s`: how long a burst takes to arrive, evenly; 0: all at once. `scaled`: whose rates set the
    load, the batch tenants' (interactive tenants keep theirs) or everybody's. `in_step`: all batch tenants have their
    chances at the same moments. `thinned`: a factor on interactive rates and all credits, for many small tenants."""

    load: float = 0.6
    workers: int = 80
    interactive: int = 10
    batch: int = 2
    duration_s: float = 300.0
    bursts: Literal["timed", "arrivals"] = "timed"
    burst_over_s: float = 20.0
    scaled: Literal["batch", "all"] = "batch"
    in_step: bool = False
    thinned: float = 1.0


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant as drawn. Requests and credits a second; `burst_p` between 0 and 1."""

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
        """As the paper has it: the base rate in requests a second."""
        return {sender.name: Share(rate_per_s=sender.credits_per_s) for sender in self.senders}

    def guarantees(self) -> dict[str, Share]:
        """The same promise in worker-seconds a second, with a bucket of BUCKET_S."""
        rates = {sender.name: sender.credits_per_s * MEAN_S[sender.kind] for sender in self.senders}
        return {name: Share(rate_per_s=rate, burst=rate * BUCKET_S) for name, rate in rates.items()}


def is_interactive(request: ClusterRequest) -> bool:
    return request.tenant.startswith(INTERACTIVE)


def is_batch(request: ClusterRequest) -> bool:
    return request.tenant.startswith(BATCH)


def paper_workload(scenario: Scenario, seed: int) -> PaperWorkload:
    random = Random(seed)
    interactive = [_drawn(random, INTERACTIVE, number, scenario) for number in range(scenario.interactive)]
    batch = [_drawn(random, BATCH, number, scenario) for number in range(scenario.batch)]
    factor = _factor(scenario, interactive, batch)
    requests: list[ClusterRequest] = []
    for sender in interactive:
        requests += _interactive_requests(random, sender, scenario, factor if scenario.scaled == "all" else 1.0)
    shared_phase = random.random()
    for sender in batch:
        phase = shared_phase if scenario.in_step else random.random()
        requests += _batch_requests(random, sender, scenario, factor, phase)
    requests.sort(key=attrgetter("arrival_s"))
    return PaperWorkload(scenario, requests, [*interactive, *batch])


def _drawn(random: Random, kind: str, number: int, scenario: Scenario) -> Sender:
    rate = random.uniform(*RATES_PER_S[kind]) * (scenario.thinned if kind == INTERACTIVE else 1.0)
    burst_p = random.uniform(*BURSTS_P[kind])
    return Sender(f"{kind}-{number}", kind, rate, burst_p, random.uniform(*CREDITS_PER_S[kind]) * scenario.thinned)


def _factor(scenario: Scenario, interactive: Sequence[Sender], batch: Sequence[Sender]) -> float:
    """What the scaled rates are multiplied by, so that the work offered is what the load says."""
    steady = sum(sender.rate_per_s for sender in interactive) * MEAN_S[INTERACTIVE]
    bursty = sum(_batch_rate(scenario, sender) for sender in batch) * MEAN_S[BATCH]
    asked = scenario.load * scenario.workers
    if scenario.scaled == "all":
        return asked / (steady + bursty)
    if asked <= steady:
        raise ValueError(f"interactive tenants alone ask for {steady:.1f} of {asked:.1f} workers: no room for batch")
    return (asked - steady) / bursty


def _batch_rate(scenario: Scenario, sender: Sender) -> float:
    """Requests a second, bursts included, before scaling."""
    size = sum(BURST) / 2
    if scenario.bursts == "timed":
        return sender.rate_per_s + sender.burst_p * size / BURST_EVERY_S
    return sender.rate_per_s * (1 - sender.burst_p + sender.burst_p * size)


def _poisson(random: Random, rate_per_s: float, end_s: float) -> Iterator[float]:
    at = random.expovariate(rate_per_s)
    while at < end_s:
        yield at
        at += random.expovariate(rate_per_s)


def _interactive_requests(
    random: Random, sender: Sender, scenario: Scenario, factor: float
) -> Iterator[ClusterRequest]:
    """Spikes come within the rate: it is divided by their mean size."""
    mean_size = 1 - sender.burst_p + sender.burst_p * sum(SPIKE) / 2
    for at in _poisson(random, sender.rate_per_s * factor / mean_size, scenario.duration_s):
        for _ in range(random.randint(*SPIKE) if random.random() < sender.burst_p else 1):
            yield _request(random, at, sender)


def _batch_requests(
    random: Random, sender: Sender, scenario: Scenario, factor: float, phase: float
) -> Iterator[ClusterRequest]:
    bursts_at = []
    for at in _poisson(random, sender.rate_per_s * factor, scenario.duration_s):
        if scenario.bursts == "arrivals" and random.random() < sender.burst_p:
            bursts_at.append(at)
        else:
            yield _request(random, at, sender)
    if scenario.bursts == "timed":
        every_s = BURST_EVERY_S / factor
        chances = (every_s * (phase + number) for number in range(int(scenario.duration_s / every_s) + 1))
        bursts_at = [at for at in chances if random.random() < sender.burst_p]
    for at in bursts_at:
        for _ in range(random.randint(*BURST)):
            spread_at = at + random.random() * scenario.burst_over_s
            if spread_at < scenario.duration_s:
                yield _request(random, spread_at, sender)


def _request(random: Random, at: float, sender: Sender) -> ClusterRequest:
    service_s = random.uniform(*SERVICE_S[sender.kind])
    return ClusterRequest(at, sender.name, service_s, service_s, MEAN_S[sender.kind])
