"""FairServe's throttling before an engine, and the workload and the runs of its case."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from statistics import fmean

import pytest

from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.shard.settings import SATURATED
from gpu_worker.policies.fairness.registry import make_policy
from headgate.evidence.fairserve import APPS, CALLS, OIT, RPM, case_study, play
from headgate.simulator.drive import drive
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.gates.stages import ThrottledEngine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival
from tests.support.simulator.fleets import EndedRequests

PROFILE = load_profile("a100-llama3-8b-chunked")


numbers = itertools.count()


def call(user: str, app: str = "a", stage: int = 0) -> SimRequest:
    return SimRequest(str(next(numbers)), Arrival(0.0, user, 10, 10, interaction="i", stage=stage, app=app), 0.0)


def throttled(limits: ThrottleLimits, saturation: float = 1.0, saturated: float = SATURATED) -> ThrottledEngine:
    engine = make_engine(PROFILE, make_policy("fcfs"))
    return ThrottledEngine(engine, limits, lambda: saturation, saturated=saturated)


def refusal(engine: ThrottledEngine, request: SimRequest, now_s: float = 0.0) -> str | None:
    assert engine.submit(request, now_s) == (request.rejected is None)
    return request.rejected


@pytest.mark.parametrize(
    ("saturation", "reason"), [(0.0, None), (0.49, None), (0.5, "throttled_user"), (1.0, "throttled_user")]
)
def test_a_limit_holds_from_the_given_saturation_on(saturation: float, reason: str | None) -> None:
    engine = throttled(ThrottleLimits(user=1, app=100), saturation, saturated=0.5)
    assert refusal(engine, call("u")) is None
    assert refusal(engine, call("u")) == reason


def test_a_later_stage_is_let_through() -> None:
    engine = throttled(ThrottleLimits(user=1, app=1))
    assert refusal(engine, call("u")) is None
    assert refusal(engine, call("u", stage=1), 1.0) is None
    assert refusal(engine, call("u"), 2.0) == "throttled_user"


def test_each_application_has_its_own_limit() -> None:
    engine = throttled(ThrottleLimits(user=100, app=1))
    assert refusal(engine, call("u", "a")) is None
    assert refusal(engine, call("v", "b")) is None
    assert refusal(engine, call("w", "a")) == "throttled_app"


def test_a_started_interaction_goes_on_while_the_pool_is_full() -> None:
    """Its second call arrives when its user is over the limit and another user's request fills the pool."""
    small = PROFILE.model_copy(update={"pool_tokens": 2_000})
    arrivals = [
        Arrival(0.0, "u", 10, 5, interaction="begun", stage=0, app="a"),
        Arrival(0.0, "u", 10, 5, interaction="begun", stage=1, app="a"),
        Arrival(0.0, "v", 1_000, 900, app="b"),
        Arrival(0.5, "u", 10, 5, interaction="new", stage=0, app="a"),
    ]
    ended = EndedRequests()
    engine = make_engine(small, make_policy("fcfs"))
    drive(arrivals, ThrottledEngine(engine, ThrottleLimits(user=1, app=100), lambda: engine.saturation), ended)
    refused = [(request.arrival.interaction, request.arrival.stage, request.rejected) for request in ended.refused]
    assert refused == [("new", 0, "throttled_user")]


def test_the_workload_is_that_of_the_published_statistics() -> None:
    tokens: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    shares: Counter[tuple[int, int]] = Counter()
    seeds = range(1, 31)
    for seed in seeds:
        arrivals = list(case_study(seed))
        for arrival in arrivals:
            tokens[arrival.app or ""].append((arrival.input_tokens, arrival.output_tokens))
        for calls in Counter(arrival.interaction for arrival in arrivals).values():
            shares[next((low, high) for low, high, _ in CALLS if low <= calls <= high)] += calls
    for app in APPS:
        assert len(tokens[app.name]) == app.requests * len(seeds)
        assert fmean(inputs for inputs, _ in tokens[app.name]) == pytest.approx(app.input_tokens, rel=0.03)
        assert fmean(outputs for _, outputs in tokens[app.name]) == pytest.approx(app.output_tokens, rel=0.03)
    for low, high, percent in CALLS:
        assert 100 * shares[low, high] / shares.total() == pytest.approx(percent, abs=2.0)


def test_the_stages_of_an_interaction_are_one_users_and_in_order() -> None:
    stages: defaultdict[str, list[int | None]] = defaultdict(list)
    users: dict[str, str] = {}
    for arrival in case_study(1):
        stages[arrival.interaction or ""].append(arrival.stage)
        assert users.setdefault(arrival.interaction or "", arrival.tenant) == arrival.tenant
    assert all(of == list(range(len(of))) for of in stages.values())


def test_a_seed_is_a_workload_of_its_own_and_always_the_same() -> None:
    assert list(case_study(1)) == list(case_study(1)) != list(case_study(2))


@pytest.mark.parametrize("seed", [1, 2])
def test_throttling_cuts_no_interaction_where_rpm_does(seed: int) -> None:
    throttled, rpm = play((OIT, seed, 0.0)), play((f"rpm:{RPM}", seed, 0.0))
    assert throttled.refused > 0
    assert (throttled.cut, throttled.wasted) == (0, 0)
    assert rpm.cut > 0
    assert rpm.wasted > 0
