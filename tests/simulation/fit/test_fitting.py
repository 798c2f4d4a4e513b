"""A log that an engine of known step times made gives these step times back, and the profile repeats the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Jitter
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fit.fitting import fit_engine
from headgate.simulator.fit.least_squares import LeastSquares
from headgate.simulator.fit.log import LoggedRequest, ServerLog
from headgate.simulator.fit.step_times import BatchHistory, fit_step_times
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival


def known_profile(**changes: object) -> EngineProfile:
    values = {"pool_tokens": 6000, "overhead_s": 0.0, "fitted_on": None, "prefill_curve": (), **changes}
    return load_profile().model_copy(update=values)


def some_arrivals(seed: int, requests: int, gap_s: float) -> list[Arrival]:
    random, now_s, arrivals = Random(seed), 0.0, []
    for _ in range(requests):
        arrivals.append(Arrival(now_s, "a", random.randint(20, 600), random.randint(2, 200)))
        now_s += random.expovariate(1 / gap_s)
    return arrivals


class Answers(Collector):
    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.served: list[SimRequest] = []

    def on_served(self, request: SimRequest) -> None:
        self.served.append(request)


def serve_log(profile: EngineProfile, arrivals: Sequence[Arrival], jitter: float = 0.0) -> ServerLog:
    """Return the log of the simulated engine under fcfs."""
    answers = Answers()
    jittered = Jitter(Random(7), jitter) if jitter else None
    drive(arrivals, make_engine(profile, make_policy("fcfs", WEIGHTED_TOKENS), jitter=jittered), answers)
    rows = [
        LoggedRequest(
            *(one.release_s, one.first_token_s, one.finish_s, one.arrival.input_tokens, one.arrival.output_tokens, "a")
        )
        for one in sorted(answers.served, key=lambda one: int(one.request_id))
    ]
    return ServerLog("served.csv", tuple(rows), 0)


def decode_s(profile: EngineProfile, running: int) -> float:
    """Return the seconds of a step of so many requests, each with 400 tokens."""
    base_s = profile.decode_base_s + profile.overhead_s
    return base_s + running * (profile.decode_per_request_s + 400 * profile.decode_per_kv_token_s)


def prefill_s(profile: EngineProfile, tokens: int) -> float:
    return profile.prefill_base_s + profile.overhead_s + profile.prefill_per_token_s * tokens


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    gap_s=st.floats(0.5, 3.0),
    decode_base_s=st.floats(0.015, 0.05),
    decode_per_request_s=st.floats(0.0001, 0.001),
    decode_per_kv_token_s=st.floats(0.000001, 0.000003),
    prefill_base_s=st.floats(0.03, 0.1),
    prefill_per_token_s=st.floats(0.0001, 0.0005),
)
def test_a_known_engine_is_found_again(seed: int, gap_s: float, **step_s: float) -> None:
    profile = known_profile(**step_s)
    log = serve_log(profile, some_arrivals(seed, 150, gap_s))
    fit = fit_engine(log, "again", "fcfs", profile)
    assert fit.profile.fitted_on is not None
    for running in (1, fit.profile.fitted_on.batch_max):
        assert decode_s(fit.profile, running) == pytest.approx(decode_s(profile, running), rel=0.04)
    for tokens in (300, 600):
        assert prefill_s(fit.profile, tokens) == pytest.approx(prefill_s(profile, tokens), rel=0.06)
    assert fit.whole_answers.errors["p50"] <= 0.05 * fit.whole_answers.logged["p50"]
    assert fit.decoding["p99"] <= 0.01 * fit.whole_answers.logged["p99"]


def test_jitter_moves_the_step_times_little() -> None:
    profile = known_profile()
    fit = fit_engine(serve_log(profile, some_arrivals(3, 600, 1.0), jitter=0.05), "again", "fcfs", profile)
    assert decode_s(fit.profile, 5) == pytest.approx(decode_s(profile, 5), rel=0.05)
    assert prefill_s(fit.profile, 500) == pytest.approx(prefill_s(profile, 500), rel=0.25)


def test_chunked_prefill_is_fitted_by_its_own_rules() -> None:
    profile = load_profile("a100-llama3-8b-chunked")
    fit = fit_engine(serve_log(profile, some_arrivals(5, 400, 0.05)), "again", "fcfs", profile)
    assert fit.profile.prefill_base_s == 0.0
    assert decode_s(fit.profile, 8) == pytest.approx(decode_s(profile, 8), rel=0.03)
    assert fit.profile.prefill_per_token_s == pytest.approx(profile.prefill_per_token_s, rel=0.1)
    assert fit.profile.chunk_tokens == profile.chunk_tokens


def test_without_rules_the_pool_and_the_batch_are_those_of_the_log() -> None:
    arrivals = some_arrivals(11, 300, 0.3)
    profile = known_profile(steps_between_admissions=1, prompt_extra_tokens=0, batch_max=12, pool_tokens=100_000)
    fit = fit_engine(serve_log(profile, arrivals), "mine", "fcfs")
    assert fit.profile.batch_max == 12
    assert fit.profile.pool_tokens < 12 * 800 * 1.02
    assert fit.whole_answers.errors["p90"] < 0.1 * fit.whole_answers.logged["p90"]
    assert fit.notes == ()  # requests waited while twelve ran
    assert fit.profile.fitted_on is not None
    assert fit.profile.fitted_on.admission.startswith("at every step")
    assert (fit.profile.fitted_on.batch_max, fit.profile.fitted_on.requests) == (12, 300)


def test_limits_that_the_log_does_not_show_are_named_lower_bounds() -> None:
    profile = known_profile(steps_between_admissions=1)
    fit = fit_engine(serve_log(profile, some_arrivals(2, 100, 3.0)), "mine", "fcfs")
    assert any("lower bounds" in note for note in fit.notes)


@pytest.mark.parametrize(
    ("arrival_s", "first_s", "waited"),
    [(0.5, 1.6, True), (0.5, 0.85, False), (2.0, 5.0, False)],  # the last waits while the batch has room
)
def test_a_wait_counts_where_the_batch_was_full(arrival_s: float, first_s: float, waited: bool) -> None:
    full = [LoggedRequest(0.0, 0.1, end_s, 10, 5, "a") for end_s in (0.8, 1.0, 1.0)]
    late = LoggedRequest(arrival_s, first_s, first_s + 0.05, 10, 1, "a")
    assert BatchHistory([*full, late]).has_wait_when_full(1.0) is waited


def test_one_request_at_a_time_tells_nothing_about_batches() -> None:
    arrivals = [Arrival(100.0 * number, "a", 100, 50 + number) for number in range(20)]
    fit = fit_engine(serve_log(known_profile(), arrivals), "mine", "fcfs", known_profile())
    assert fit.profile.decode_per_request_s == 0.0
    assert [note.partition(",")[0] for note in fit.notes] == [
        "The log's requests run one at a time",
        "All prompts have one length",
    ]
    assert fit.whole_answers.errors["p99"] < 0.001


def test_a_log_without_decoding_is_refused() -> None:
    log = ServerLog("x.csv", tuple(LoggedRequest(n, n + 0.1, n + 0.1, 10, 1, "a") for n in range(20)), 0)
    with pytest.raises(ConfigurationError, match="fit to a log with outputs of many tokens"):
        fit_engine(log, "x", "fcfs")


def test_first_tokens_of_a_mini_batch_may_be_logged_a_little_apart() -> None:
    log = serve_log(known_profile(), some_arrivals(4, 200, 0.4))
    apart = [replace(one, first_token_s=one.first_token_s + 0.0004 * (n % 2)) for n, one in enumerate(log.requests)]
    exact = fit_step_times(BatchHistory(log.requests, extra=2)).times
    found = fit_step_times(BatchHistory(apart, extra=2)).times
    assert found.columns() == pytest.approx(exact.columns(), rel=0.05, abs=1e-8)


def test_a_prefill_that_jumps_at_a_size_is_found_at_the_knots() -> None:
    curve = ((1, 0.03), (256, 0.07), (257, 0.13), (3072, 0.7))
    log = serve_log(known_profile(prefill_curve=curve, tenant_tokens=0), some_arrivals(5, 600, 0.5))
    extra = known_profile().prompt_extra_tokens
    times = fit_step_times(BatchHistory(log.requests, extra=extra, knots=[tokens for tokens, _ in curve])).times
    assert [seconds for _, seconds in times.prefill_curve] == pytest.approx([seconds for _, seconds in curve], rel=0.1)
    assert times.prefill_s(1664) == pytest.approx(0.415, rel=0.05)


@given(st.lists(st.floats(0, 10), min_size=3, max_size=3), st.integers(0, 1000))
def test_least_squares_find_what_the_rows_were_made_of(wanted: list[float], seed: int) -> None:
    random, squares = Random(seed), LeastSquares(3)
    for _ in range(10):
        row = [random.uniform(0, 5) for _ in range(3)]
        squares.add(row, sum(a * x for a, x in zip(row, wanted, strict=True)))
    assert squares.solve() == pytest.approx(wanted, abs=1e-3)


def test_no_coefficient_is_negative_and_a_repeated_column_gets_nothing() -> None:
    squares = LeastSquares(3)
    for a, b in ((1.0, 0.0), (2.0, 1.0), (3.0, 3.0)):
        squares.add((a, 2 * a, b), 4 * a - b)
    found = squares.solve()
    assert found[1] == found[2] == 0.0
    assert 3.0 < found[0] < 4.0
