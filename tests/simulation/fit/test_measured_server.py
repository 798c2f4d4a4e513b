"""The measured profile of the VTC paper's server on runs that it was not fitted to, and what its rule changes."""

from __future__ import annotations

import pytest

from benchmarks.replayed_runs import predict
from headgate.evidence.vtc.measured import (
    A10G,
    A100,
    BETWEEN_MIN,
    REQUESTS_MIN,
    RunAnswer,
    compare_run,
    engine_of,
    figures_of,
    history_of,
    is_fitted,
    measured_logs,
    policy_of,
)
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.fit.step_times import fit_step_times
from tests.support.simulator.fleets import TRACES, needs_traces

MEASURED = TRACES / "vtc" / "measured"
PROFILE = load_profile(A10G)


@needs_traces
@pytest.mark.parametrize("run", ["poisson_short_long_2.vtc", "overload-multi.vtc_oracle", "a100-13b-35000-512.vtc"])
def test_a_held_out_run_is_within_every_tolerance(run: str) -> None:
    path = MEASURED / f"{run}.csv"
    assert path in measured_logs(TRACES)
    assert not is_fitted(path)
    compared = compare_run(path)
    assert len(compared.figures) > 6
    assert compared.misses == []


@needs_traces
def test_a_run_with_misses_is_compared_with_simulations_of_other_step_times() -> None:
    one, again = (compare_run(MEASURED / "real.vtc_oracle.csv") for _ in range(2))
    assert (one.among_ours, one.between) == (again.among_ours, again.between)
    assert one.among_ours[0] < one.among_ours[-1] <= len(one.figures)
    assert one.between is not None
    assert one.between >= BETWEEN_MIN * len(one.figures)
    whole = compare_run(MEASURED / "overload.vtc.csv")
    assert (whole.among_ours, whole.between) == ((), None)


@needs_traces
@pytest.mark.parametrize("field", ["tenant_tokens", "prefill_curve"])
def test_the_run_of_27_clients_in_order_of_arrival_needs_the_room_and_the_curve(field: str) -> None:
    path = MEASURED / "real.fcfs.csv"
    assert compare_run(path).misses == []
    without = PROFILE.model_copy(update={field: EngineProfile.model_fields[field].default})
    assert len(compare_run(path, without).misses) > 1


@needs_traces
def test_a_replay_predicts_the_logs_mini_batches_with_the_servers_rules_only() -> None:
    path = MEASURED / "overload-multi.vtc_oracle.csv"
    without_room = PROFILE.model_copy(update={"tenant_tokens": 0})
    predicted, count = predict(path, PROFILE, policy_of(path.stem, PROFILE))
    assert predicted >= 0.9 * count
    assert predict(path, without_room, policy_of(path.stem, PROFILE))[0] < predicted


@needs_traces
def test_the_light_client_waits_as_measured_only_with_the_repeated_attempts() -> None:
    assert light_client_p99_s(PROFILE) == pytest.approx(0.71, abs=0.1)
    after_every_attempt = PROFILE.model_copy(update={"repeats_failed_attempts": False})
    assert light_client_p99_s(after_every_attempt) > 1.2


def light_client_p99_s(profile: EngineProfile) -> float:
    """Return the P99 of the first tokens of the client below its share, in the run of Figure 9."""
    figures = compare_run(MEASURED / "increase.vtc.csv", profile).figures
    found = next(figure for figure in figures if figure.what == "client-0 first tokens P99")
    assert found.measured == pytest.approx(0.71, abs=0.01)
    return found.simulated


@needs_traces
@pytest.mark.parametrize("engine", [A10G, A100])
def test_the_profile_has_the_step_times_that_are_fitted(engine: str) -> None:
    fitted = [path for path in measured_logs(TRACES) if is_fitted(path) and engine_of(path) == engine]
    times = fit_step_times(*map(history_of, fitted)).times
    profile = load_profile(engine)
    fields = ["decode_base_s", "decode_per_request_s", "decode_per_kv_token_s"]
    for name in fields if profile.prefill_curve else [*fields, "prefill_per_token_s", "prefill_base_s"]:
        assert getattr(profile, name) == pytest.approx(getattr(times, name), rel=0.001)
    assert len(profile.prefill_curve) == len(times.prefill_curve)
    for point, found in zip(profile.prefill_curve, times.prefill_curve, strict=True):
        assert point == pytest.approx(found, rel=0.001)


def test_a_figure_outside_its_tolerance_is_found() -> None:
    measured = [RunAnswer("a", float(n), 1.0, 10.0) for n in range(REQUESTS_MIN)] + [RunAnswer("few", 0.0, 1.0, 2.0)]
    late = [RunAnswer("a", answer.arrival_s, 1.6, 11.4) for answer in measured[:-1]]
    outside = [figure.what for figure in figures_of(measured, [*late, measured[-1]]) if not figure.is_within]
    assert outside == ["total", *(f"a first tokens P{n}" for n in (50, 90, 99))]
    assert all(figure.is_within for figure in figures_of(measured, measured))
