"""A run's timeline, read as the VTC paper's figures read it (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from headgate.evidence.document.sections import Plot, Series
from headgate.simulator.measures.timeline import Timeline
from headgate.simulator.run import Run

WINDOW_S = 60.0


def timeline_of(run: Run) -> Timeline:
    assert run.timeline is not None, "the run was asked for no timeline"
    return run.timeline


def service_between(run: Run, tenant: str, from_s: float, to_s: float) -> float:
    """Service units that the tenant received then, to the width of a bin."""
    line = timeline_of(run)
    rates = line.service_rate.get(tenant, [])
    return sum(r * line.bin_s for t, r in zip(line.times_s, rates, strict=False) if from_s <= t < to_s)


def response_between(run: Run, tenant: str, from_s: float, to_s: float) -> float:
    """Mean time to first token (seconds) of what the tenant sent then; 0 where it sent nothing."""
    line = timeline_of(run)
    values = line.response_s.get(tenant, [])
    found = [v for t, v in zip(line.times_s, values, strict=False) if from_s <= t < to_s and v is not None]
    return fmean(found) if found else 0.0


def apart(run: Run) -> list[float]:
    """Greatest difference of accumulated service between two tenants, at the end of each bin."""
    line = timeline_of(run)
    sums = [list(accumulate(rate * line.bin_s for rate in rates)) for rates in line.service_rate.values()]
    return [max(at) - min(at) for at in zip(*sums, strict=True)]


def apart_max(run: Run, to_s: float) -> float:
    return max(a for t, a in zip(timeline_of(run).times_s, apart(run), strict=True) if t < to_s)


def smooth(line: Timeline, values: Sequence[float]) -> list[float]:
    """Mean over a window of 60 s about each bin, shorter at the ends."""
    half = max(1, round(WINDOW_S / line.bin_s / 2))
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def rates_plot(name: str, title: str, run: Run, to_s: float) -> Plot:
    line = timeline_of(run)
    until = sum(t < to_s for t in line.times_s)
    return Plot(
        name,
        title,
        "time (s)",
        "service (units/s)",
        [
            Series(tenant, line.times_s[:until], smooth(line, rates)[:until])
            for tenant, rates in line.service_rate.items()
        ],
    )


def response_plot(name: str, title: str, runs: dict[str, Run], to_s: float) -> Plot:
    """One line a policy and tenant; the second policy's are dashed."""
    series = []
    for number, (policy, run) in enumerate(runs.items()):
        line = timeline_of(run)
        until = sum(t < to_s for t in line.times_s)
        for tenant, values in line.response_s.items():
            series.append(Series(f"{tenant}, {policy}", line.times_s[:until], values[:until], dashed=number > 0))
    return Plot(name, title, "sent at (s)", "time to first token (s)", series)


def apart_plot(name: str, title: str, runs: dict[str, Run], to_s: float) -> Plot:
    series = []
    for policy, run in runs.items():
        line = timeline_of(run)
        until = sum(t < to_s for t in line.times_s)
        series.append(Series(policy, line.times_s[:until], apart(run)[:until]))
    return Plot(name, title, "time (s)", "difference of accumulated service (units)", series)
