"""The plots of the report page: the kinds of Figures 3 to 15 of the VTC paper, for any workload.

A plot is inside the page: the SVG of drawing.py with the colours of page.css, so that it follows light and dark.
Colours become CSS variables, and the legend is HTML below the plot: long names of tenants wrap there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

from headgate.simulator.measures.timeline import Timeline, furthest_behind
from headgate.simulator.report.drawing import COLOURS, Plot, Series, draw, pen, saved, settings
from headgate.simulator.report.html import as_csv
from headgate.simulator.run import Run

TENANTS_MAX = 7
"""Tenants with a series of their own: those with the most service. All other tenants share one series."""
_LABELLED_MAX = 24
_TIME = "time (s)"
_CSV = "The data of these charts as CSV"
_VARIABLES = {colour.lower(): f"var(--c{number})" for number, colour in enumerate(COLOURS)}
_VARIABLES |= {"#ffffff": "none", "#b0b0b0": "var(--soft)"}
"""Background and grid. matplotlib's axes are black, as is the last of COLOURS."""
_BORDERS = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashed"}
"""The border styles of CSS by the line styles of the plot, for the legend."""
_SVG = re.compile(r'<svg[^>]* viewBox="([^"]+)"[^>]*>(.*)', re.DOTALL)
_UNUSED = re.compile(r'<metadata>.*?</metadata>|<style.*?</style>| id="[\w.]+_\d+"|font-family: [^;"]*;?', re.DOTALL)
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")

_Column = Sequence[float | None]
_Columns = Callable[[Timeline], Mapping[str, _Column]]
_Combine = Callable[[list[_Column]], _Column]


def figures(runs: Sequence[Run]) -> str:
    """Return the page's sections with plots; `runs` have timelines. Without runs there are no sections."""
    if not runs:
        return ""
    shown = _shown_tenants(runs)
    pool = Series("pool", [0.0, _last_s(runs)], [float(runs[0].pool_tokens)] * 2, limit=True)
    return "".join(
        (
            _per_tenant("Service rate", "Service received, in service units per second.", "units/s", runs, shown,
                        lambda timeline: timeline.service_rate, _sum),
            _per_tenant("Demand", "Service that the served requests need, by arrival time.", "units/s", runs, shown,
                        lambda timeline: timeline.demand_rate, _sum),
            _per_policy("Behind while waiting",
                        "By how much of the service that it has waiting the worst-off tenant is behind the others that "
                        "wait. A fair order bounds it; a tenant that asks for less is not behind.",
                        "service units", runs, furthest_behind),
            _per_tenant("Response time", "Mean time to first token, by arrival time.", "s", runs, shown,
                        lambda timeline: timeline.response_s, _mean),
            _by_tenant("Shares", "Of the service until the last request arrived. Over the whole run, shares only show "
                       "how much was requested.", "% of service", runs, shown, _shares_of),
            _per_tenant("Queue", "Waiting requests.", "requests", runs, shown, lambda timeline: timeline.queue, _sum),
            _per_policy("KV cache", "Tokens in the KV cache. The dotted line is the size of the pool.", "tokens", runs,
                        lambda timeline: timeline.kv_tokens, pool),
        )
    )  # fmt: skip


def timeline_of(run: Run) -> Timeline:
    """Return the run's timeline. Raises ValueError if its RunSpec did not ask for one."""
    if run.timeline is None:
        raise ValueError(f"the run of {run.policy} has no timeline: RunSpec(timeline=True) makes one")
    return run.timeline


def _shown_tenants(runs: Sequence[Run]) -> list[str]:
    """Return the tenants with a series of their own, by name. One tenant alone is never "1 others"."""
    service: dict[str, float] = {}
    for run in runs:
        for name, tenant in run.tenants.items():
            service[name] = max(service.get(name, 0.0), tenant.service)
    most = sorted(service, key=lambda name: (-service[name], name))
    return sorted(most[:TENANTS_MAX]) if len(most) > TENANTS_MAX + 1 else sorted(most)


def _last_s(runs: Sequence[Run]) -> float:
    return max((timeline_of(run).times_s[-1] for run in runs if timeline_of(run).times_s), default=1.0)


def _per_tenant(
    title: str, what: str, unit: str, runs: Sequence[Run], shown: Sequence[str], columns: _Columns, combine: _Combine
) -> str:
    """Draw one plot per tenant with a series per policy, on one scale. One policy has one plot, of all tenants."""
    found = [_series(timeline_of(run), shown, columns, combine) for run in runs]
    rows = (
        (one.label, run.policy, *point)
        for run, series in zip(runs, found, strict=True)
        for one in series
        for point in _points(one)
    )
    written = as_csv(_CSV, ("tenant", "policy", _TIME, f"{title.lower()} ({unit})"), rows)
    if len(runs) == 1:
        drawn = [_figure(title, "", Plot("", "", _TIME, unit, found[0], x_max=_last_s(runs)))]
        return _section(title, what, drawn, written)
    highest = max((y for series in found for one in series for y in one.ys if y is not None), default=0.0)
    names = list(dict.fromkeys(one.label for series in found for one in series))
    plots = [
        Plot(
            *("", "", _TIME, unit),
            [
                replace(one, label=run.policy, dashed=place % 2 > 0)
                for place, (run, series) in enumerate(zip(runs, found, strict=True))
                for one in series
                if one.label == name
            ],
            x_max=_last_s(runs),
            y_max=1.05 * highest or 1.0,
        )
        for name in names
    ]
    drawn = [_figure(title, name, plot) for name, plot in zip(names, plots, strict=True)]
    return _section(title, what, drawn, written)


def _points(series: Series) -> Iterator[tuple[str, str]]:
    """Yield the points of a series as text, without gaps."""
    return ((f"{x:.6g}", f"{y:.6g}") for x, y in zip(series.xs, series.ys, strict=True) if y is not None)


def _series(timeline: Timeline, shown: Sequence[str], columns: _Columns, combine: _Combine) -> list[Series]:
    """Return a series per tenant. Every second series is dashed, so that two equal series are both visible."""
    found, times = columns(timeline), timeline.times_s
    nothing: list[float | None] = [None] * len(times)
    series = [Series(name, times, found.get(name, nothing), dashed=place % 2 > 0) for place, name in enumerate(shown)]
    others = [found[name] for name in found if name not in shown]
    return [*series, Series(f"{len(others)} others", times, combine(others), dashed=True)] if others else series


def _sum(columns: list[_Column]) -> _Column:
    return [sum(value or 0.0 for value in values) for values in zip(*columns, strict=True)]


def _mean(columns: list[_Column]) -> _Column:
    """Average the tenants that have a value in a bin."""
    found = [[value for value in values if value is not None] for values in zip(*columns, strict=True)]
    return [sum(values) / len(values) if values else None for values in found]


def _per_policy(
    title: str, what: str, unit: str, runs: Sequence[Run], column: Callable[[Timeline], _Column], *limits: Series
) -> str:
    """Draw one plot with a series per policy."""
    series = [
        Series(run.policy, timeline_of(run).times_s, column(timeline_of(run)), dashed=place % 2 > 0)
        for place, run in enumerate(runs)
    ]
    plot = Plot("", "", _TIME, unit, [*series, *limits], x_max=_last_s(runs))
    rows = ((one.label, *point) for one in plot.series for point in _points(one))
    written = as_csv(_CSV, ("policy", _TIME, f"{title.lower()} ({unit})"), rows)
    return _section(title, what, [_figure(title, "", plot)], written)


def waits(runs: Sequence[Run]) -> str:
    """Return the section with the waits of each tenant, every policy beside the others, and of tenants with a target
    how many first tokens are in time."""
    shown = _shown_tenants(runs)
    what = "Time to first token of each tenant, every policy beside the others."
    plots = {label: _bars("s", runs, shown, figures_of) for label, figures_of in _PERCENTILES.items()}
    drawn = [_figure(f"Time to first token, {label}", label, plot) for label, plot in plots.items()]
    columns = {f"time to first token, {label}": plot for label, plot in plots.items()}
    if any(run.all.due for run in runs):
        what += " In time: by the tenant's own target; a tenant without one has a dash."
        columns["in time"] = _bars("%", runs, shown, _in_time_of)
        drawn.append(_figure("First tokens in time", "In time", columns["in time"]))
    return _section("Waits by tenant", what, drawn, bars_csv("policy", columns))


def _in_time_of(run: Run) -> dict[str, float | None]:
    return {name: 100 * each.in_time if each.due else None for name, each in run.tenants.items()}


def _p50_of(run: Run) -> dict[str, float | None]:
    return {name: None if each.ttft_s is None else each.ttft_s.p50 for name, each in run.tenants.items()}


def _p99_of(run: Run) -> dict[str, float | None]:
    return {name: None if each.ttft_s is None else each.ttft_s.p99 for name, each in run.tenants.items()}


_Figures = Callable[[Run], Mapping[str, float | None]]
_PERCENTILES: Mapping[str, _Figures] = {"P50": _p50_of, "P99": _p99_of}


def _by_tenant(
    title: str, what: str, unit: str, runs: Sequence[Run], shown: Sequence[str], figures_of: _Figures
) -> str:
    plot = _bars(unit, runs, shown, figures_of)
    return _section(title, what, [_figure(title, "", plot)], bars_csv("policy", {title.lower(): plot}))


def bars_csv(compared: str, plots: Mapping[str, Plot]) -> str:
    """Return bar charts of the same tenants and series as CSV, a column for each. `compared`: what a series is."""
    first = next(iter(plots.values()))
    headings = ("tenant", compared, *(f"{name} ({plot.y_label})" for name, plot in plots.items()))
    rows = (
        (tenant, one.label, *(_cell(plot.series[place].ys[at]) for plot in plots.values()))
        for at, tenant in enumerate(first.ticks)
        for place, one in enumerate(first.series)
    )
    return as_csv(_CSV, headings, rows)


def _cell(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _bars(unit: str, runs: Sequence[Run], shown: Sequence[str], figures_of: _Figures) -> Plot:
    """Return a plot with a group of bars per tenant, and a bar in it per policy."""
    found = [(run.policy, figures_of(run)) for run in runs]
    return grouped_bars(unit, shown, {policy: [figures.get(name) for name in shown] for policy, figures in found})


def grouped_bars(unit: str, tenants: Sequence[str], values: Mapping[str, Sequence[float | None]]) -> Plot:
    """Return a plot with a group of bars per tenant, and a bar in it for each of the compared. `values`: of each of
    them, by tenant. Up to _LABELLED_MAX bars have their value above them: one of 0.2 beside one of 300 is not seen, and
    a dash tells no value from 0."""
    is_labelled = len(tenants) * len(values) <= _LABELLED_MAX
    series = [
        Series(name, (), ys, labels=["–" if y is None else number(y) for y in ys] if is_labelled else ())
        for name, ys in values.items()
    ]
    return Plot("", "", "", unit, series, kind="bars", ticks=tuple(tenants))


def _shares_of(run: Run) -> dict[str, float | None]:
    received = _service_to_last_arrival(timeline_of(run))
    total = sum(received.values()) or 1.0
    return {name: 100 * received.get(name, 0.0) / total for name in run.tenants}


def _service_to_last_arrival(timeline: Timeline) -> dict[str, float]:
    """Return the service units of each tenant up to the end of the last bin in which a served request arrived."""
    last = max((at for rates in timeline.demand_rate.values() for at, rate in enumerate(rates) if rate), default=-1)
    return {name: sum(rates[: last + 1]) * timeline.bin_s for name, rates in timeline.service_rate.items()}


def _figure(title: str, policy: str, plot: Plot) -> str:
    caption = f"<figcaption>{escape(policy)}</figcaption>" if policy else ""
    return f"<figure>{caption}{inline(', '.join(filter(None, (title, policy))), plot)}</figure>"


def _section(title: str, what: str, drawn: Sequence[str], written: str) -> str:
    """Return a question with its charts. `written`: their data."""
    return f'<section><h2>{title}</h2><p>{what}</p><div class="charts">{"".join(drawn)}</div>{written}</section>\n'


def number(value: float) -> str:
    """Format with three significant digits and k, M or G."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def inline(name: str, plot: Plot) -> str:
    """Draw a plot as HTML: <svg> and legend. Screen readers read `name` and the greatest value of each series.

    Raises ConfigurationError if matplotlib is not installed.
    """
    box, body = _SVG.findall(_drawn(plot))[0]
    body = _UNUSED.sub("", body).replace("xlink:href", "href")
    body = _COLOUR.sub(lambda colour: _VARIABLES.get(colour[0], colour[0]), body)
    values = "; ".join(f"{series.label}: at most {number(_highest(series))} {plot.y_label}" for series in plot.series)
    return (
        f'<svg role="img" viewBox="{box}" xmlns="http://www.w3.org/2000/svg"><title>{escape(name)}</title>'
        f"<desc>{escape(values)}</desc>{body.rstrip()}{_legend(plot)}"
    )


def _drawn(plot: Plot) -> str:
    with settings():
        figure = draw(plot, (5.6, 2.7))
        axes = figure.axes[0]
        for axis in (axes.yaxis,) if plot.kind == "bars" else (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: number(value))
        return saved(figure)


def _highest(series: Series) -> float:
    return max((y for y in series.ys if y is not None), default=0.0)


def _legend(plot: Plot) -> str:
    items = []
    for place, series in enumerate(plot.series):
        colour, dash = pen(place, series)
        style = f"--pen: {_BORDERS[dash]} {_VARIABLES[colour.lower()]}"
        items.append(f'<li style="{style}">{escape(series.label)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
