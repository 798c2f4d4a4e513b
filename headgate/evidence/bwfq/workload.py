"""The workload of the BWFQ paper as far as the paper gives it. Every choice that it leaves open is a named constant.

Source: BWFQ (2025), section 3.6 (rates, service times, bursts, token rates) and 4.1 (80 workers, 300 s). Given:
- interactive tenants send 6 to 12 requests per second of 50 to 120 ms and earn 15 to 30 tokens per second, with
  occasional spikes;
- batch tenants send 0.2 to 0.5 requests per second of 8 to 15 s, earn 0.8 to 2 tokens per second, and send bursts of
  40 to 150 requests with probability 60 to 90 %.
Not given: the number of tenants, when a burst can come and how long it takes to arrive, how a load is set, and how
large a spike is. If the probability holds for each arrival, the bursts of one batch tenant alone need three times the
80 workers. So here each tenant has a chance of a burst at fixed intervals, and batch rates are scaled to the load.

It is played under each order of the gate, and under `held`, which is no order of the gate. `held` is a reading of
section 3.1, "the demand is held until more tokens become available": each request stays out of the queue until its
tenant has a token for it, even if workers are idle; after that the queue is first come, first served. Its delays are
counted from the arrival and also from the release into the queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from random import Random

from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.shard.alone import CostGate
from headgate.simulator.gates.cluster import ClusterRequest, run_cluster

_INTERACTIVE, BATCH = "interactive", "batch"
_SERVICE_S = {_INTERACTIVE: (0.05, 0.12), BATCH: (8.0, 15.0)}
_MEAN_S = {kind: (low + high) / 2 for kind, (low, high) in _SERVICE_S.items()}
"""The gate's estimate of a request's cost, in worker-seconds. It learns the true cost when the request ends."""
_RATES_PER_S = {_INTERACTIVE: (6.0, 12.0), BATCH: (0.2, 0.5)}
_CREDITS_PER_S = {_INTERACTIVE: (15.0, 30.0), BATCH: (0.8, 2.0)}
_BURSTS_P = {_INTERACTIVE: (0.05, 0.10), BATCH: (0.60, 0.90)}
_BURST = (40, 150)
_BURST_OVER_S = 20.0
"""Our choice: a burst arrives evenly within so many seconds."""
_SPIKE = (2, 5)
"""Our choice: requests at once in a spike of an interactive tenant."""
_BURST_EVERY_S = 50.0
"""The distance of the bursts in Figure 6."""
_BUCKET_S = 1.0
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
        """Return the same rates in worker-seconds per second, with buckets of _BUCKET_S."""
        rates = {sender.name: sender.credits_per_s * _MEAN_S[sender.kind] for sender in self.senders}
        return {name: Share(rate_per_s=rate, burst=rate * _BUCKET_S) for name, rate in rates.items()}


def is_interactive(request: ClusterRequest) -> bool:
    return request.tenant.startswith(_INTERACTIVE)


def is_batch(request: ClusterRequest) -> bool:
    return request.tenant.startswith(BATCH)


def paper_workload(scenario: Scenario, seed: int) -> PaperWorkload:
    """Draw the workload. Raises ValueError if the interactive tenants alone need more than the load."""
    random = Random(seed)
    interactive = [_drawn(random, _INTERACTIVE, number, scenario) for number in range(scenario.interactive)]
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
    rate = random.uniform(*_RATES_PER_S[kind]) * (scenario.thinned if kind == _INTERACTIVE else 1.0)
    burst_p = random.uniform(*_BURSTS_P[kind])
    return Sender(f"{kind}-{number}", kind, rate, burst_p, random.uniform(*_CREDITS_PER_S[kind]) * scenario.thinned)


def _batch_factor(scenario: Scenario, interactive: Sequence[Sender], batch: Sequence[Sender]) -> float:
    """Return the factor on batch rates with which the offered work equals the load; interactive rates stay."""
    steady = sum(sender.rate_per_s for sender in interactive) * _MEAN_S[_INTERACTIVE]
    bursty = sum(sender.rate_per_s + sender.burst_p * sum(_BURST) / 2 / _BURST_EVERY_S for sender in batch)
    offered = scenario.load * scenario.workers
    if offered <= steady:
        raise ValueError(f"the interactive tenants need {steady:.1f} of {offered:.1f} workers: none are left for batch")
    return (offered - steady) / (bursty * _MEAN_S[BATCH])


def _poisson(random: Random, rate_per_s: float, end_s: float) -> Iterator[float]:
    at = random.expovariate(rate_per_s)
    while at < end_s:
        yield at
        at += random.expovariate(rate_per_s)


def _interactive_requests(random: Random, sender: Sender, duration_s: float) -> Iterator[ClusterRequest]:
    """Spikes are part of the rate: arrivals come at the rate over the mean number of requests per arrival."""
    mean_size = 1 - sender.burst_p + sender.burst_p * sum(_SPIKE) / 2
    for at in _poisson(random, sender.rate_per_s / mean_size, duration_s):
        for _ in range(random.randint(*_SPIKE) if random.random() < sender.burst_p else 1):
            yield _request(random, at, sender)


def _batch_requests(
    random: Random, sender: Sender, duration_s: float, factor: float, phase: float
) -> Iterator[ClusterRequest]:
    for at in _poisson(random, sender.rate_per_s * factor, duration_s):
        yield _request(random, at, sender)
    every_s = _BURST_EVERY_S / factor
    chances = (every_s * (phase + number) for number in range(int(duration_s / every_s) + 1))
    for at in [at for at in chances if random.random() < sender.burst_p]:
        for _ in range(random.randint(*_BURST)):
            spread_at = at + random.random() * _BURST_OVER_S
            if spread_at < duration_s:
                yield _request(random, spread_at, sender)


def _request(random: Random, at: float, sender: Sender) -> ClusterRequest:
    service_s = random.uniform(*_SERVICE_S[sender.kind])
    return ClusterRequest(at, sender.name, service_s, service_s, _MEAN_S[sender.kind])


HELD = "held"
GATE_ORDERS = ("fcfs", "ratio", "ratio+wake", "virtual-clock", "virtual-clock+cap", "sfq", "bwfq")
_IN_REQUESTS = frozenset({"ratio", "ratio+wake"})
"""The orders with rates in requests per second, as in the paper. All others have rates in worker-seconds per second."""
_LEAD_S = 30.0
"""`lead_max` of the two clocks, in seconds of the whole pool."""


@dataclass(frozen=True, slots=True)
class Played:
    """When each request of a workload started. `released_s`: when it came into the queue."""

    workload: PaperWorkload
    released_s: Sequence[float]
    starts_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run: P99s in seconds over all requests, by nearest rank; infinite if 1 % of them never started.

    `released`: counted from the release, over the requests that ended within the run. `work`: worker-seconds delivered
    within the run.
    """

    interactive_wait_s: float
    batch_wait_s: float
    interactive_response_s: float
    batch_response_s: float
    interactive_slowdown: float
    batch_slowdown: float
    interactive_released_s: float
    batch_released_s: float
    work: float


def play_paper(job: tuple[Scenario, int, tuple[str, ...]]) -> dict[str, Figures]:
    """Play one workload under several orders. A job for Setting.map: scenario, seed, orders."""
    scenario, seed, orders = job
    workload = paper_workload(scenario, seed)
    return {order: _figures(play(order, workload)) for order in orders}


def play(order: str, workload: PaperWorkload) -> Played:
    scenario, requests = workload.scenario, workload.requests
    released = [(request.arrival_s, number) for number, request in enumerate(requests)]
    sent = requests
    if order == HELD:
        released = _release_times(requests, workload.credits())
        sent = [requests[number]._replace(arrival_s=at) for at, number in released]
    run = run_cluster(
        CostGate("fcfs" if order == HELD else order, slots=scenario.workers, lead_max=_LEAD_S * scenario.workers),
        sent,
        share=workload.credits() if order in _IN_REQUESTS else workload.guarantees(),
        capacity_per_s=None if order in _IN_REQUESTS else float(scenario.workers),
    )
    releases_s, starts_s = [0.0] * len(requests), [inf] * len(requests)
    for (at, number), start in zip(released, run.starts_s, strict=True):
        releases_s[number], starts_s[number] = at, start
    return Played(workload, releases_s, starts_s)


def _release_times(requests: Sequence[ClusterRequest], earns: dict[str, Share]) -> list[tuple[float, int]]:
    """Return when each request is released: once its tenant has earned a token for it, from 0 on (equation 1)."""
    spent: defaultdict[str, int] = defaultdict(int)
    released = []
    for number, request in enumerate(requests):
        earned_at = (spent[request.tenant] + 1) / earns[request.tenant].rate_per_s
        spent[request.tenant] += 1
        released.append((max(request.arrival_s, earned_at), number))
    return sorted(released)


def p99(values: Sequence[float]) -> float:
    """Return the P99 by nearest rank; 0 of no values."""
    return percentile(values, 0.99) or 0.0


def _figures(played: Played) -> Figures:
    end_s = played.workload.scenario.duration_s
    rows = list(zip(played.workload.requests, played.starts_s, played.released_s, strict=True))
    by_kind = [[row for row in rows if chosen(row[0])] for chosen in (is_interactive, is_batch)]
    waits, responses, slowdowns = (
        [p99([figure(request, start) for request, start, _ in kind]) for kind in by_kind]
        for figure in (_wait, _response, _slowdown)
    )
    released = [p99([start - at for r, start, at in kind if start + r.service_s <= end_s]) for kind in by_kind]
    return Figures(
        interactive_wait_s=waits[0],
        batch_wait_s=waits[1],
        interactive_response_s=responses[0],
        batch_response_s=responses[1],
        interactive_slowdown=slowdowns[0],
        batch_slowdown=slowdowns[1],
        interactive_released_s=released[0],
        batch_released_s=released[1],
        work=sum(max(0.0, min(end_s, start + request.service_s) - start) for request, start, _ in rows),
    )


def _wait(request: ClusterRequest, start: float) -> float:
    return start - request.arrival_s


def _response(request: ClusterRequest, start: float) -> float:
    return start + request.service_s - request.arrival_s


def _slowdown(request: ClusterRequest, start: float) -> float:
    return (start - request.arrival_s) / request.service_s + 1.0
