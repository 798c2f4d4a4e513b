"""A run's timeline, read as the VTC paper's figures read it (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headgate.simulator.measures.timeline import Timeline, service_difference
from headgate.simulator.report.drawing import Plot, Series
from headgate.simulator.report.plots import timeline_of
from headgate.simulator.run import Run

WINDOW_S = 60.0


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


def apart_max(run: Run, to_s: float) -> float:
    """Return the greatest difference of accumulated service between two tenants before `to_s`, in service units."""
    line = timeline_of(run)
    return max(a for t, a in zip(line.times_s, service_difference(line), strict=True) if t < to_s)


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
        series.append(Series(policy, line.times_s[:until], service_difference(line)[:until]))
    return Plot(name, title, "time (s)", "difference of accumulated service (units)", series)
