"""VTC with length prediction against Algorithm 3 read literally, and special cases of a prediction."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness import vtc_predicted
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.vtc_predicted import MeanOfLast, NoisyLength, PredictedTokenCounter, TrueLength
from tests.support.queue.model import BatchModel, Job, LiteralVtc

lengths = st.tuples(st.integers(1, 24), st.integers(1, 12))
arrival = st.tuples(st.just("arrive"), st.integers(0, 5), lengths)
schedules = st.lists(st.one_of(arrival, st.tuples(st.just("step"), st.just(0), st.just((0, 0)))), max_size=80)


class LiteralPrediction(LiteralVtc):
    """Lines 24, 25 and 32 to 37. The predictor is the rounded mean of the client's last five outputs, 0 at first."""

    def __init__(self, *, oracle: bool) -> None:
        super().__init__()
        self.oracle = oracle
        self.predicted: dict[str, int] = {}
        self.generated: dict[str, int] = {}
        self.history: dict[str, list[int]] = {}

    def admit(self, r: str) -> None:
        job = self.jobs[r]
        last = self.history.get(job.tenant, [])[-5:]
        self.predicted[r] = job.output_tokens if self.oracle else round(sum(last) / len(last)) if last else 0
        self.generated[r] = 0
        super().admit(r)  # line 24
        self.c[job.tenant] += self.W_Q * self.predicted[r] / job.weight  # line 25

    def decode(self, r: str) -> None:
        self.generated[r] += 1
        if self.generated[r] - self.predicted[r] > 0:  # lines 33 and 34
            super().decode(r)  # line 35

    def finish(self, r: str) -> None:
        job, delta = self.jobs[r], self.generated[r] - self.predicted[r]
        if delta < 0:  # line 36
            self.c[job.tenant] += self.W_Q * delta / job.weight  # line 37
        self.history.setdefault(job.tenant, []).append(self.generated[r])
        super().finish(r)


@pytest.mark.parametrize("name", ["vtc-predict", "vtc-oracle"])
@settings(max_examples=100, deadline=None)
@given(schedule=schedules)
def test_the_same_schedule_as_algorithm_3_read_literally(
    name: str, schedule: list[tuple[str, int, tuple[int, int]]]
) -> None:
    policy, literal = make_policy(name), LiteralPrediction(oracle=name == "vtc-oracle")
    assert isinstance(policy, PredictedTokenCounter)
    model = BatchModel(policy, 80)
    for call, number, size in schedule:
        if call == "arrive":
            job = Job(f"t{number}", *size, weight=2.0 ** (number % 3))
            literal.arrive(model.arrive(job), job)
        else:
            for request_id in model.admit():
                assert literal.pick() == request_id
                literal.admit(request_id)
            for request_id in list(model.running):
                literal.decode(request_id)
                if literal.generated[request_id] == model.jobs[request_id].output_tokens:
                    literal.finish(request_id)
            model.decode()
        assert {tenant: policy.counter(tenant) for tenant in literal.c} == literal.c


def oracle(output_tokens: int, weight: float = 1.0) -> PredictedTokenCounter:
    """Make a policy with one running request of this predicted length."""
    policy = PredictedTokenCounter(TrueLength())
    policy.enqueue(QueueRequest("r", "a", 10, weight, output_tokens))
    policy.admit("r")
    return policy


def test_an_output_length_reported_beyond_the_prediction() -> None:
    policy = oracle(5)
    policy.on_decoded(2)
    policy.on_generated("r", 4)
    assert policy.counter("a") == 20
    policy.on_generated("r", 7)
    assert policy.counter("a") == 24
    policy.on_decoded(1)
    assert policy.counter("a") == 26


def test_a_request_preempted_below_its_prediction_and_cancelled_pays_its_output() -> None:
    policy = oracle(50)
    policy.on_decoded(3)
    policy.preempt("r")
    assert policy.counter("a") == 110
    policy.cancel("r")
    assert policy.counter("a") == 16


def test_the_mean_of_the_last_five() -> None:
    predictor, request = MeanOfLast(), QueueRequest("r", "a", 10)
    assert predictor.predict(request) == 0
    for output_tokens in (1000, 10, 20, 30, 40, 52):
        predictor.learn(request, output_tokens)
    assert predictor.predict(request) == round((10 + 20 + 30 + 40 + 52) / 5)
    assert predictor.predict(QueueRequest("s", "b", 10)) == 0


def test_tenants_without_recent_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vtc_predicted, "TENANTS_KEPT_MAX", 3)
    predictor = MeanOfLast()
    for tenant in ("a", "b", "c", "a", "d"):
        predictor.learn(QueueRequest("r", tenant, 1), 9)
    known = [tenant for tenant in "abcd" if predictor.predict(QueueRequest("r", tenant, 1))]
    assert known == ["a", "c", "d"]


def test_a_noisy_length_is_within_its_margin_and_uses_all_of_it() -> None:
    predictor = NoisyLength(0.5, Random(1))
    guesses = [predictor.predict(QueueRequest("r", "a", 1, output_tokens=1000)) for _ in range(2_000)]
    assert 500 <= min(guesses) < 520
    assert 1480 < max(guesses) <= 1500
    assert sum(guesses) / len(guesses) == pytest.approx(1000, rel=0.03)
    assert predictor.predict(QueueRequest("r", "a", 1)) == 0


def test_prediction_makes_the_service_of_two_tenants_more_even() -> None:
    """The purpose of prediction (section 4.4): the oracle charges long answers before they are generated."""

    def gap(name: str) -> float:
        model = BatchModel(make_policy(name, WEIGHTED_TOKENS), 400)
        for _ in range(200):
            model.arrive(Job("long", 4, 60))
            model.arrive(Job("short", 4, 6))
        worst = 0.0
        for _ in range(300):
            model.step()
            worst = max(worst, abs(model.service("long") - model.service("short")))
        return worst

    assert gap("vtc-oracle") < gap("vtc")
