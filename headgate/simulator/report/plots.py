"""What is drawn of runs: the kinds of Figures 3 to 15 of the VTC paper, for any trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import accumulate

from headgate.simulator.measures.timeline import Timeline
from headgate.simulator.report.charts import Line, bar_chart, highest, last_x, line_chart
from headgate.simulator.run import Run

TENANTS_MAX = 7
"""Most tenants with a line of their own: those with the most service; the rest are one."""
TIME = "time (s)"
Column = Sequence[float | None]


def figures(runs: Sequence[Run]) -> str:
    """Of runs with timelines; each kind side by side over the policies, to one scale. Nothing where there are none."""
    if not runs:
        return ""
    shown = _shown(runs)
    return "".join(
        (
            _kind("Service rate", "Service received, in service units a second.", runs, _rates(shown), "units/s"),
            _kind("Demand", "Service asked for by what was served, by arrival.", runs, _demand(shown), "units/s"),
            _one(
                "Accumulated service difference",
                "Between the tenants that had received most and least by then, of those that were served at all.",
                [Line(run.policy, _line(run).times_s, _apart(_line(run))) for run in runs],
                "service units",
            ),
            _kind("Response time", "Mean time to the first token, by arrival.", runs, _responses(shown), "s"),
            _shares(runs, shown),
            _kind("Queue", "Requests waiting.", runs, _queues(shown), "requests"),
            _one(
                "KV cache",
                "Tokens held; the pool is the dotted line.",
                [*(Line(run.policy, _line(run).times_s, _line(run).kv_tokens) for run in runs), _pool(runs)],
                "tokens",
            ),
        )
    )


def _line(run: Run) -> Timeline:
    if run.timeline is None:
        raise ValueError(f"the run of {run.policy} was asked for no timeline")
    return run.timeline


def _shown(runs: Sequence[Run]) -> list[str]:
    service: dict[str, float] = {}
    for run in runs:
        for name, figures in run.tenants.items():
            service[name] = max(service.get(name, 0.0), figures.service)
    most = sorted(service, key=lambda name: (-service[name], name))
    return sorted(most[:TENANTS_MAX]) if len(most) > TENANTS_MAX + 1 else sorted(most)


Kind = Callable[[Run], list[Line]]
Together = Callable[[list[Column]], Column]


def _rates(shown: Sequence[str]) -> Kind:
    return lambda run: _lines(run, shown, _line(run).service_rate, _sum)


def _demand(shown: Sequence[str]) -> Kind:
    return lambda run: _lines(run, shown, _line(run).demand_rate, _sum)


def _queues(shown: Sequence[str]) -> Kind:
    return lambda run: _lines(run, shown, _line(run).queue, _sum)


def _responses(shown: Sequence[str]) -> Kind:
    return lambda run: _lines(run, shown, _line(run).response_s, _mean)


def _lines(
    run: Run, shown: Sequence[str], of: Mapping[str, Column], together: Callable[[list[Column]], Column]
) -> list[Line]:
    times = _line(run).times_s
    empty: list[float | None] = [None] * len(times)
    lines = [Line(name, times, of.get(name, empty)) for name in shown]
    others = [of[name] for name in of if name not in shown]
    return [*lines, Line(f"{len(others)} others", times, together(others))] if others else lines


def _sum(columns: list[Column]) -> Column:
    return [sum(value or 0.0 for value in at) for at in zip(*columns, strict=True)]


def _mean(columns: list[Column]) -> Column:
    """Of those that sent something then."""
    found = [[value for value in at if value is not None] for at in zip(*columns, strict=True)]
    return [sum(values) / len(values) if values else None for values in found]


def _apart(line: Timeline) -> list[float]:
    sums = [list(accumulate(rate * line.bin_s for rate in rates)) for rates in line.service_rate.values()]
    return [max(at) - min(at) for at in zip(*sums, strict=True)] if sums else [0.0] * len(line.times_s)


def _pool(runs: Sequence[Run]) -> Line:
    last_s = max((_line(run).times_s[-1] for run in runs if _line(run).times_s), default=1.0)
    return Line("pool", [0.0, last_s], [float(runs[0].pool_tokens)] * 2, limit=True)


def _kind(title: str, what: str, runs: Sequence[Run], kind: Kind, unit: str) -> str:
    drawn = [kind(run) for run in runs]
    last, top = (max(map(of, drawn), default=0.0) for of in (last_x, highest))
    charts = "".join(
        _figure(run.policy, line_chart(f"{title}, {run.policy}", lines, TIME, unit, x_max=last, y_max=top))
        for run, lines in zip(runs, drawn, strict=True)
    )
    return _section(title, what, charts)


def _one(title: str, what: str, lines: Sequence[Line], unit: str) -> str:
    return _section(title, what, _figure("", line_chart(title, lines, TIME, unit)))


def _shares(runs: Sequence[Run], shown: Sequence[str]) -> str:
    charts = []
    for run in runs:
        received = _while_asked(_line(run))
        total = sum(received.values()) or 1.0
        bars = [(name, 100 * received.get(name, 0.0) / total) for name in shown if name in run.tenants]
        rest = [received.get(name, 0.0) for name in run.tenants if name not in shown]
        if rest:
            bars.append((f"{len(rest)} others", 100 * sum(rest) / total))
        charts.append(_figure(run.policy, bar_chart(f"Shares, {run.policy}", bars, "% of service", y_max=100.0)))
    what = (
        "Of the service delivered until the last request was sent: of the whole run they say only who asked for what."
    )
    return _section("Shares", what, "".join(charts))


def _while_asked(line: Timeline) -> dict[str, float]:
    """Service units of each tenant up to the end of the last bin in which somebody sent what was served."""
    bins = 1 + max((at for asked in line.demand_rate.values() for at, rate in enumerate(asked) if rate), default=-1)
    return {name: sum(rates[:bins]) * line.bin_s for name, rates in line.service_rate.items()}


def _figure(caption: str, chart: str) -> str:
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{told}{chart}</figure>"


def _section(title: str, what: str, body: str) -> str:
    return f'<section><h2>{title}</h2><p>{what}</p><div class="charts">{body}</div></section>\n'
