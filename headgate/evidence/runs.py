"""What experiments read off their runs: statistics over many seeds with checks of these, and timelines.

A timeline is read as the figures of the VTC paper read it (section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TypeVar

from headgate.evidence.document import Check, Setting
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.measures.timeline import Timeline, service_difference
from headgate.simulator.report.drawing import Plot, Series
from headgate.simulator.report.plots import timeline_of
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate

K = TypeVar("K")
R = TypeVar("R")


def over_seeds(setting: Setting, specs: Mapping[K, RunSpec]) -> dict[K, list[Run]]:
    """Run each spec with the seeds 1 to `setting.seeds` and the setting's jitter."""
    jobs = [
        (key, replace(spec, seed=seed, jitter=setting.jitter))
        for key, spec in specs.items()
        for seed in range(1, setting.seeds + 1)
    ]
    runs = setting.map(simulate, [spec for _, spec in jobs])
    found: dict[K, list[Run]] = {key: [] for key in specs}
    for (key, _), run in zip(jobs, runs, strict=True):
        found[key].append(run)
    return found


def mean(runs: Sequence[R], figure: Callable[[R], float]) -> float:
    return fmean(figure(run) for run in runs)


def spread(runs: Sequence[Run], figure: Callable[[Run], float]) -> str:
    """Return mean and standard deviation as text."""
    values = [figure(run) for run in runs]
    sd = stdev(values) if len(values) > 1 else 0.0
    return f"{_short(fmean(values))} ± {_short(sd)}"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def ratio(ours: float, theirs: float | None, digits: int = 2) -> str | None:
    """Return ours over theirs as text; None without theirs."""
    return None if not theirs else f"{ours / theirs:.{digits}f}"


def within(what: str, ours: float, theirs: float, tolerance: float, reason: str = "") -> Check:
    """Check that ours differs from theirs by at most `tolerance`, relative. `reason`: why it may differ more."""
    return Check(
        f"{what} within {tolerance:.0%}",
        abs(ours / theirs - 1) <= tolerance,
        f"{ours:.4g} against {theirs:.4g}: {ours / theirs - 1:+.1%}",
        reason,
        float(f"{ours:.5g}"),
        float(f"{theirs:.5g}"),
        tolerance,
    )


def all_within(what: str, pairs: Mapping[str, tuple[float, float]], tolerance: float) -> Check:
    """Check that ours is near theirs in every case, and show the case that is furthest off.

    `pairs`: ours and theirs by case. For figures that many policies share, so that one claim is enough.
    """
    case, (ours, theirs) = max(pairs.items(), key=lambda pair: abs(pair[1][0] / pair[1][1] - 1))
    worst = within(what, ours, theirs, tolerance)
    return replace(worst, found=f"{len(pairs)} figures; furthest off is {case}: {worst.found}")


def above(what: str, higher: tuple[str, float], lower: tuple[str, float]) -> Check:
    """Check that the first of two named values is above the second."""
    found = f"{higher[0]} {higher[1]:.4g}, {lower[0]} {lower[1]:.4g}"
    return Check(f"{what}: {higher[0]} > {lower[0]}", higher[1] > lower[1], found)


def _difference(run: Run) -> Difference:
    if run.difference is None:
        raise ValueError(f"the run of {run.policy} has no service difference: its horizon is 0")
    return run.difference


def max_difference(run: Run) -> float:
    return _difference(run).max


def avg_difference(run: Run) -> float:
    return _difference(run).avg


def throughput(run: Run) -> float:
    return run.throughput_tokens_per_s


def total_time(run: Run) -> float:
    return run.total_time_s


WINDOW_S = 60.0


def service_between(runs: Sequence[Run], tenant: str, from_s: float, to_s: float) -> float:
    """Return the service units that the tenant received in a period: the mean of the runs, exact to a bin."""

    def of_run(run: Run) -> float:
        timeline = timeline_of(run)
        rates = timeline.service_rate.get(tenant, [])
        return sum(r * timeline.bin_s for t, r in zip(timeline.times_s, rates, strict=False) if from_s <= t < to_s)

    return mean(runs, of_run)


def response_between(runs: Sequence[Run], tenant: str, from_s: float, to_s: float) -> float:
    """Return the mean time to first token (s) of the tenant's requests of a period: the mean of the runs.

    A run in which the tenant sent nothing then counts as 0.
    """

    def of_run(run: Run) -> float:
        timeline = timeline_of(run)
        values = zip(timeline.times_s, timeline.response_s.get(tenant, []), strict=False)
        found = [value for t, value in values if from_s <= t < to_s and value is not None]
        return fmean(found) if found else 0.0

    return mean(runs, of_run)


def apart_max(run: Run, to_s: float) -> float:
    """Return the greatest difference of accumulated service between two tenants before `to_s`, in service units."""
    timeline = timeline_of(run)
    return max(a for t, a in zip(timeline.times_s, service_difference(timeline), strict=True) if t < to_s)


def rates_plot(figure: str, policy: str, run: Run, to_s: float) -> Plot:
    """Plot each tenant's service rate, smoothed over 60 s. `figure`: of the paper, such as 3b."""
    timeline = timeline_of(run)
    until = _bins_until(timeline, to_s)
    series = [
        Series(tenant, timeline.times_s[:until], _smooth(timeline, rates)[:until])
        for tenant, rates in timeline.service_rate.items()
    ]
    title = f"Figure {figure}: service received, {policy}"
    return Plot(f"vtc-figure-{figure}", title, "time (s)", "service (units/s)", series)


def response_plot(figure: str, runs: Mapping[str, Run], to_s: float) -> Plot:
    """Plot a series per policy and tenant; those of the second policy are dashed."""
    series = []
    for number, (policy, run) in enumerate(runs.items()):
        timeline = timeline_of(run)
        until = _bins_until(timeline, to_s)
        for tenant, values in timeline.response_s.items():
            series.append(Series(f"{tenant}, {policy}", timeline.times_s[:until], values[:until], dashed=number > 0))
    title = f"Figure {figure}: time to first token"
    return Plot(f"vtc-figure-{figure}", title, "sent at (s)", "time to first token (s)", series)


def apart_plot(figure: str, runs: Mapping[str, Run], to_s: float) -> Plot:
    """Plot the greatest difference of accumulated service between two tenants, a series per run."""
    series = []
    for name, run in runs.items():
        timeline = timeline_of(run)
        until = _bins_until(timeline, to_s)
        series.append(Series(name, timeline.times_s[:until], service_difference(timeline)[:until]))
    title = f"Figure {figure}: difference of accumulated service"
    return Plot(f"vtc-figure-{figure}", title, "time (s)", "difference of accumulated service (units)", series)


def _bins_until(timeline: Timeline, to_s: float) -> int:
    return sum(t < to_s for t in timeline.times_s)


def _smooth(timeline: Timeline, values: Sequence[float]) -> list[float]:
    """Average each bin over a window of 60 s around it, shorter at the ends."""
    half = max(1, round(WINDOW_S / timeline.bin_s / 2))
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
