"""The BWFQ paper's workload under every order, and beside them two that are no orders of the gate but say something:

batch first   first come, first served, batch before interactive: how little batch can wait under any order that
              keeps workers busy and lets nobody of its kind wait for longer so that another may wait less
held          a reading of section 3.1, "the demand is held until more tokens become available": each request is
              kept from the queue until its tenant has a token for it, workers idle or not; then first come, first
              served. Its delays are counted from the arrival, and from the release as well
bwfq, cost 1  the two clocks told, as the paper's order is, that every request costs the same
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.interface import Gate
from dispatcher.policies.orders.registry import new_gate
from dispatcher.policies.orders.single_queue import SingleQueue
from dispatcher.policies.percentiles import percentile
from headgate.evidence.bwfq.workload import BATCH, PaperWorkload, is_batch, is_interactive, paper_workload
from headgate.evidence.bwfq.workload import Scenario as Scenario
from headgate.simulator.gates.cluster import ClusterRequest, run_cluster

GATE_ORDERS = ("fcfs", "ratio", "ratio+wake", "virtual-clock", "virtual-clock+cap", "sfq", "bwfq")
COST_1, BATCH_FIRST, HELD = "bwfq, cost 1", "batch first", "held"
ORDERS_PLAYED = (*GATE_ORDERS, COST_1, BATCH_FIRST, HELD)
IN_REQUESTS = frozenset({"ratio", "ratio+wake", COST_1})
"""Whose rates are the paper's, in requests a second; all others are told worker-seconds."""
LEAD_S = 30.0
"""`lead_max` of the two clocks, as so many seconds of the whole pool."""


class BatchFirst(SingleQueue):
    def _goes_at_once(self, tenant: str) -> bool:
        return True

    def _priority(self, tenant: str) -> float:
        return 0.0 if tenant.startswith(BATCH) else 1.0

    def _spend(self, tenant: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Played:
    """When each request of a workload started. `released_s`: when the queue first saw it."""

    workload: PaperWorkload
    released_s: Sequence[float]
    starts_s: Sequence[float]

    def waits_s(self, chosen: Callable[[ClusterRequest], bool]) -> list[float]:
        pairs = zip(self.workload.requests, self.starts_s, strict=True)
        return [start - request.arrival_s for request, start in pairs if chosen(request)]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. P99s by nearest rank, in seconds, of everything that arrived, infinite where a hundredth never
    started; `released`: from the release, of what ended within the run. `done` and `work`: requests and worker-seconds
    that ended or were given within the run. `jain`: Jain's index of the tenants' mean slowdowns, 1 where all alike."""

    interactive_wait_s: float
    batch_wait_s: float
    interactive_response_s: float
    batch_response_s: float
    interactive_slowdown: float
    batch_slowdown: float
    interactive_released_s: float
    batch_released_s: float
    done: int
    work: float
    jain: float
    asked: int


def play_paper(job: tuple[Scenario, int, tuple[str, ...]]) -> dict[str, Figures]:
    """A job for Setting.map: a scenario, a seed, and the orders that are to play the same workload."""
    scenario, seed, orders = job
    workload = paper_workload(scenario, seed)
    return {order: figures(play(order, workload)) for order in orders}


def play(order: str, workload: PaperWorkload) -> Played:
    scenario, requests = workload.scenario, workload.requests
    released = [(request.arrival_s, number) for number, request in enumerate(requests)]
    if order == HELD:
        released = _held(requests, workload.credits())
    sent = [requests[number]._replace(arrival_s=at) for at, number in released] if order == HELD else requests
    if order == COST_1:
        sent = [request._replace(cost=1.0, estimate=1.0) for request in requests]
    run = run_cluster(
        _gate(order, scenario),
        sent,
        share=workload.credits() if order in IN_REQUESTS else workload.guarantees(),
        capacity_per_s=None if order in IN_REQUESTS else float(scenario.workers),
    )
    releases_s, starts_s = [0.0] * len(requests), [inf] * len(requests)
    for (at, number), start in zip(released, run.starts_s, strict=True):
        releases_s[number], starts_s[number] = at, start
    return Played(workload, releases_s, starts_s)


def _gate(order: str, scenario: Scenario) -> Gate:
    if order == BATCH_FIRST:
        return BatchFirst(scenario.workers)
    name = {COST_1: "bwfq", HELD: "fcfs"}.get(order, order)
    return new_gate(name, slots=scenario.workers, lead_max=LEAD_S * scenario.workers)


def _held(requests: Sequence[ClusterRequest], earns: dict[str, Share]) -> list[tuple[float, int]]:
    """When each is released: its tenant has earned a token for it, earning from 0 since the beginning (equation 1)."""
    spent: defaultdict[str, int] = defaultdict(int)
    released = []
    for number, request in enumerate(requests):
        earned_at = (spent[request.tenant] + 1) / earns[request.tenant].rate_per_s
        spent[request.tenant] += 1
        released.append((max(request.arrival_s, earned_at), number))
    return sorted(released)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile; 0 of no values."""
    return percentile(values, 0.99) or 0.0


def figures(played: Played) -> Figures:
    requests, starts = played.workload.requests, played.starts_s
    end_s = played.workload.scenario.duration_s
    rows = list(zip(requests, starts, played.released_s, strict=True))
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
        done=sum(start + request.service_s <= end_s for request, start, _ in rows),
        work=sum(max(0.0, min(end_s, start + request.service_s) - start) for request, start, _ in rows),
        jain=_jain(requests, starts),
        asked=len(requests),
    )


def _wait(request: ClusterRequest, start: float) -> float:
    return start - request.arrival_s


def _response(request: ClusterRequest, start: float) -> float:
    return start + request.service_s - request.arrival_s


def _slowdown(request: ClusterRequest, start: float) -> float:
    return (start - request.arrival_s) / request.service_s + 1.0


def _jain(requests: Sequence[ClusterRequest], starts: Sequence[float]) -> float:
    of_tenants: defaultdict[str, list[float]] = defaultdict(list)
    for request, start in zip(requests, starts, strict=True):
        if start < inf:
            of_tenants[request.tenant].append(_slowdown(request, start))
    means = [sum(values) / len(values) for values in of_tenants.values()]
    return sum(means) ** 2 / (len(means) * sum(mean * mean for mean in means)) if means else 1.0
