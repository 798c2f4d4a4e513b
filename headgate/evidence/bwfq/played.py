"""The BWFQ paper's workload under each order of the gate, and under `held`, which is no order of the gate.

`held` is a reading of section 3.1, "the demand is held until more tokens become available": each request stays out of
the queue until its tenant has a token for it, even if workers are idle; after that the queue is first come, first
served. Its delays are counted from the arrival and also from the release into the queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.shard.alone import CostGate
from headgate.evidence.bwfq.workload import PaperWorkload, Scenario, is_batch, is_interactive, paper_workload
from headgate.simulator.gates.cluster import ClusterRequest, run_cluster

HELD = "held"
GATE_ORDERS = ("fcfs", "ratio", "ratio+wake", "virtual-clock", "virtual-clock+cap", "sfq", "bwfq")
IN_REQUESTS = frozenset({"ratio", "ratio+wake"})
"""The orders with rates in requests per second, as in the paper. All others have rates in worker-seconds per second."""
LEAD_S = 30.0
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
    return {order: figures(play(order, workload)) for order in orders}


def play(order: str, workload: PaperWorkload) -> Played:
    scenario, requests = workload.scenario, workload.requests
    released = [(request.arrival_s, number) for number, request in enumerate(requests)]
    sent = requests
    if order == HELD:
        released = _release_times(requests, workload.credits())
        sent = [requests[number]._replace(arrival_s=at) for at, number in released]
    run = run_cluster(
        CostGate("fcfs" if order == HELD else order, slots=scenario.workers, lead_max=LEAD_S * scenario.workers),
        sent,
        share=workload.credits() if order in IN_REQUESTS else workload.guarantees(),
        capacity_per_s=None if order in IN_REQUESTS else float(scenario.workers),
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


def figures(played: Played) -> Figures:
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
