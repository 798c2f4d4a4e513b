"""The monitor's worst cases, compared with all pairs of clients over all intervals; it finds unfair schedules."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Observer
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.measures.collector import Collector
from headgate.simulator.measures.theorems import TENANTS_MAX, TheoremMonitor
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

PROFILE = load_profile().model_copy(update={"pool_tokens": 400, "minibatch_tokens_max": 200})
Moment = tuple[dict[str, float], frozenset[str]]


class AllMoments(TheoremMonitor):
    """The monitor, and a record of what each client had received and which were backlogged, around every event."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS)
        self.received: defaultdict[str, float] = defaultdict(float)
        self.waiting: Counter[str] = Counter()
        self.running: list[SimRequest] = []
        self.moments: list[Moment] = []

    def note(self) -> None:
        self.moments.append((dict(self.received), frozenset(name for name, count in self.waiting.items() if count)))

    def on_enqueued(self, request: SimRequest, now_s: float) -> None:
        super().on_enqueued(request, now_s)
        self.waiting[request.tenant] += 1
        self.note()

    def on_admitted(self, request: SimRequest, now_s: float) -> None:
        super().on_admitted(request, now_s)
        self.waiting[request.tenant] -= 1
        self.running.append(request)
        self.received[request.tenant] += request.arrival.input_tokens / request.weight
        self.note()

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        super().on_prefilled(requests, now_s)
        for request in requests:
            self.received[request.tenant] += 2 * bool(request.arrival.output_tokens) / request.weight
            self.note()

    def on_decoded(self, steps: int, now_s: float) -> None:
        super().on_decoded(steps, now_s)
        for request in self.running:
            self.received[request.tenant] += 2 * steps / request.weight
        self.note()

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        super().on_finished(request, now_s)
        self.running.remove(request)


def worst(moments: list[Moment], *, jointly: bool) -> float:
    """Of all clients f, g and moments t1 < t2 with f (jointly: both) backlogged throughout: W_g - W_f."""
    found = 0.0
    names = {name for received, _ in moments for name in received}
    for f in names:
        for g in names - {f}:
            for start, (before, _) in enumerate(moments):
                for now, backlogged in moments[start:]:
                    if f not in backlogged or (jointly and g not in backlogged):
                        break
                    ahead = now.get(g, 0.0) - before.get(g, 0.0) - now.get(f, 0.0) + before.get(f, 0.0)
                    found = max(found, ahead)
    return found


def play(
    arriving: list[Arrival],
    policy: QueuePolicy,
    observer: Observer | None,
    weights: Mapping[str, float] | None = None,
) -> SeparatePrefillEngine:
    engine = SeparatePrefillEngine(PROFILE, policy, observer=observer)
    arriving.sort(key=lambda arrival: arrival.arrival_s)
    drive(arriving, engine, Collector(WEIGHTED_TOKENS, 0.0), weights=weights)
    return engine


arrivals = st.builds(Arrival, st.floats(0, 3), st.sampled_from("abc"), st.integers(1, 60), st.integers(0, 40))
weights = st.fixed_dictionaries({name: st.sampled_from([1.0, 2.0, 0.5]) for name in "abc"})


@given(st.lists(arrivals, min_size=1, max_size=14), st.sampled_from(["vtc", "fcfs", "lcf"]), weights)
def test_worst_cases_are_those_of_all_pairs_over_all_intervals(
    arriving: list[Arrival], policy: str, weights: dict[str, float]
) -> None:
    monitor = AllMoments()
    play(arriving, make_policy(policy), monitor, weights)
    bounds = monitor.bounds()
    assert bounds["4.4"]["worst"] == pytest.approx(worst(monitor.moments, jointly=True), abs=1e-6)
    assert bounds["4.9"]["worst"] == pytest.approx(worst(monitor.moments, jointly=False), abs=1e-6)


class Ledger(TheoremMonitor):
    """The same run recorded again in dictionaries: what each client received, and which requests wait and run."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS)
        self.got: dict[str, float] = {}
        self.weight: dict[str, float] = {}
        self.waits: dict[str, int] = {}
        self.batch: list[SimRequest] = []
        self.came: dict[str, float] = {}
        self.backlog: dict[str, dict[str, float]] = {}
        self.at_attempt = self.gap = self.dispatch = self.share = self.input_max = self.resident_max = 0.0
        self.intervals = 0

    def on_enqueued(self, request: SimRequest, now_s: float) -> None:
        super().on_enqueued(request, now_s)
        tenant = request.tenant
        self.weight[tenant] = request.weight
        self.got.setdefault(tenant, 0.0)
        if not self.waits.get(tenant):
            self.backlog[tenant] = dict(self.got)
            if all(other.tenant != tenant for other in self.batch):
                self.came[request.request_id] = self._others(tenant)
        self.waits[tenant] = self.waits.get(tenant, 0) + 1

    def on_attempted(self, now_s: float) -> None:
        super().on_attempted(now_s)
        total = sum(self.got.values())
        self.gap, self.at_attempt = max(self.gap, total - self.at_attempt), total

    def on_admitted(self, request: SimRequest, now_s: float) -> None:
        super().on_admitted(request, now_s)
        tenant, arrival = request.tenant, request.arrival
        if request.request_id in self.came:
            self.dispatch = max(self.dispatch, self._others(tenant) - self.came.pop(request.request_id))
        self.waits[tenant] -= 1
        if not self.waits[tenant]:
            self._ends(tenant)
        self.got[tenant] += arrival.input_tokens / request.weight
        self.batch.append(request)
        self.input_max = max(self.input_max, arrival.input_tokens / request.weight)
        resident = sum(2 * (one.arrival.input_tokens + one.arrival.output_tokens) / one.weight for one in self.batch)
        self.resident_max = max(self.resident_max, resident)

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        super().on_prefilled(requests, now_s)
        for request in requests:
            self.got[request.tenant] += 2 * bool(request.arrival.output_tokens) / request.weight

    def on_decoded(self, steps: int, now_s: float) -> None:
        super().on_decoded(steps, now_s)
        for request in self.batch:
            self.got[request.tenant] += 2 * steps / request.weight

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        super().on_finished(request, now_s)
        self.batch.remove(request)

    def _others(self, tenant: str) -> float:
        return sum(got for name, got in self.got.items() if name != tenant)

    def _ends(self, tenant: str) -> None:
        """Theorem 4.13: T / n less what it got itself, n and T of those active since its backlog began."""
        before = self.backlog.pop(tenant)
        given = {name: got - before.get(name, 0.0) for name, got in self.got.items()}
        active = [name for name in given if given[name] or self.waits[name] or name == tenant]
        total = sum(given[name] * self.weight[name] for name in active)
        self.share = max(self.share, total / sum(self.weight[name] for name in active) - given[tenant])
        self.intervals += 1


@given(st.lists(arrivals, min_size=1, max_size=30), st.sampled_from(["vtc", "fcfs", "lcf"]), weights)
def test_dispatch_share_and_their_bounds_are_those_of_the_plain_record(
    arriving: list[Arrival], policy: str, weights: dict[str, float]
) -> None:
    ledger = Ledger()
    play(arriving, make_policy(policy), ledger, weights)
    bounds, unit = ledger.bounds(), max(ledger.input_max, ledger.resident_max)
    about = functools.partial(pytest.approx, abs=1e-6)
    assert bounds["4.11"]["worst"] == about(ledger.dispatch)
    assert bounds["4.11"]["bound"] == about(2 * (len(ledger.got) - 1) * unit + ledger.gap)
    assert bounds["4.13"]["worst"] == about(ledger.share)
    assert bounds["4.13"]["checked"] == ledger.intervals
    assert bounds["4.13"]["bound"] == bounds["4.9"]["bound"] == about(4 * unit)
    assert bounds["4.4"]["bound"] == about(2 * unit)
    assert bounds["4.3"]["bound"] == about(unit)


@given(st.lists(arrivals, min_size=1, max_size=30), weights)
def test_counters_are_as_far_apart_as_the_policys_own(arriving: list[Arrival], weights: dict[str, float]) -> None:
    policy, apart = make_policy("vtc"), [0.0]

    class Looking(TheoremMonitor):
        def _check_counters(self) -> None:
            super()._check_counters()
            (counters,) = policy.counters()
            apart.append(max(counters.values(), default=0.0) - min(counters.values(), default=0.0))

    monitor = Looking(WEIGHTED_TOKENS)
    play(arriving, policy, monitor, weights)
    assert monitor.bounds()["4.3"]["worst"] == pytest.approx(max(apart), abs=1e-6)


def test_first_come_first_served_lets_a_flood_through() -> None:
    flood = [Arrival(0.0, "flood", 50, 50) for _ in range(200)]
    workload = ListWorkload("flood", [*flood, *(Arrival(0.1, "quiet", 50, 50) for _ in range(20))])
    spec = RunSpec(workload, "fcfs", PROFILE, monitor="any")
    broken = simulate(spec).bounds
    assert not broken["4.3"]["held"]
    assert not broken["4.4"]["held"]
    assert not broken["4.9"]["held"]
    assert not broken["4.11"]["held"]
    assert not broken["4.13"]["held"]


def test_only_what_the_theorems_cover_is_monitored_unasked() -> None:
    workload = ListWorkload("one", [Arrival(0.0, "a", 10, 10)])
    covered = {
        (policy, service): bool(simulate(RunSpec(workload, policy, PROFILE, service=service)).bounds)
        for policy in ("vtc", "fcfs", "lcf", "vtc-predict")
        for service in ("weighted", "profiled")
    }
    assert [of for of, is_covered in covered.items() if is_covered] == [("vtc", "weighted")]
    assert simulate(RunSpec(workload, "vtc", PROFILE, monitor="off")).bounds == {}


def test_with_too_many_tenants_a_run_is_not_monitored() -> None:
    def of(tenants: int) -> ListWorkload:
        return ListWorkload("many", [Arrival(n / 10, f"t{n}", 10, 10) for n in range(tenants)])

    assert simulate(RunSpec(of(TENANTS_MAX), "vtc", PROFILE)).bounds
    assert simulate(RunSpec(of(TENANTS_MAX + 1), "vtc", PROFILE)).bounds == {}


def test_an_observer_changes_nothing() -> None:
    runs = []
    for observer in (None, Observer(), TheoremMonitor(WEIGHTED_TOKENS)):
        arriving = [Arrival(n * 0.05, "ab"[n % 3 == 0], 30, 30) for n in range(60)]
        engine = play(arriving, make_policy("vtc"), observer)
        runs.append((round(engine.now_s, 9), engine.decisions))
    assert len(set(runs)) == 1
