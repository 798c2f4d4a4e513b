"""The measured profile of the VTC paper's server on runs that it was not fitted to, and what its rule changes."""

from __future__ import annotations

import pytest

from headgate.evidence.vtc.measured import (
    A10G,
    A100,
    REQUESTS_MIN,
    RunAnswer,
    compare_run,
    engine_of,
    figures_of,
    history_of,
    is_fitted,
    measured_logs,
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
    one, again = (compare_run(MEASURED / "real.vtc.csv") for _ in range(2))
    assert one.among_ours == again.among_ours
    least, most = one.among_ours[0], one.among_ours[-1]
    assert least <= one.within < most <= len(one.figures)
    assert compare_run(MEASURED / "overload.vtc.csv").among_ours == ()


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
    for name in (
        "decode_base_s",
        "decode_per_request_s",
        "decode_per_kv_token_s",
        "prefill_per_token_s",
        "prefill_base_s",
    ):
        assert getattr(profile, name) == pytest.approx(getattr(times, name), rel=0.001)


def test_a_figure_outside_its_tolerance_is_found() -> None:
    measured = [RunAnswer("a", float(n), 1.0, 10.0) for n in range(REQUESTS_MIN)] + [RunAnswer("few", 0.0, 1.0, 2.0)]
    late = [RunAnswer("a", answer.arrival_s, 1.6, 11.4) for answer in measured[:-1]]
    outside = [figure.what for figure in figures_of(measured, [*late, measured[-1]]) if not figure.is_within]
    assert outside == ["total", *(f"a first tokens P{n}" for n in (50, 90, 99))]
    assert all(figure.is_within for figure in figures_of(measured, measured))
