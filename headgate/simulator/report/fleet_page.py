"""The page of a fleet's runs: a sentence with the verdict, charts, tables by tenant and model, and the data as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from headgate.simulator.measures.collector import Measures
from headgate.simulator.report.drawing import Plot
from headgate.simulator.report.html import data, document, table, write_whole
from headgate.simulator.report.page import OVERLOADED
from headgate.simulator.report.plots import bars_csv, grouped_bars, inline
from headgate.simulator.run import Run, forecast_text, rejections_text, waits_text

_CHARTED_MAX = 12
"""The tenants in a chart: those with the most requests."""
_HEADINGS = (
    "planner", "policy", "seed", "tenant", "requests", "served", "in_time", "ttft_p50_s", "ttft_p99_s", "service",
    "lateness_s", "share", "swap_charge",
)  # fmt: skip


def write(path: Path, by_planner: Sequence[Sequence[Run]]) -> None:
    """Write the page. `by_planner` holds the runs of each planner and policy, one per seed.

    Raises OSError, and ConfigurationError if matplotlib is not installed.
    """
    write_whole(path, page(by_planner))


def page(by_planner: Sequence[Sequence[Run]]) -> str:
    """Return the page as HTML. Raises ConfigurationError if matplotlib is not installed."""
    sections = (_header, _charts, _planners, _tenants, _models, _data)
    return document(by_planner[0][0].workload, "".join(section(by_planner) for section in sections))


def verdict(by_planner: Sequence[Sequence[Run]]) -> str:
    """Return which planner serves its worst-off tenant best, in one sentence. Planners that tie are named together, and
    parts that look equal tie."""
    worst = {
        _name(runs): min((_to_tenths(_in_time(runs, tenant)), tenant) for tenant in runs[0].tenants)
        for runs in by_planner
    }
    most, tenant = max(worst.values(), key=lambda pair: pair[0])
    best = [name for name, (value, _) in worst.items() if value == most]
    others = "; ".join(
        f"under {name} {other} has {value:.1%}" for name, (value, other) in worst.items() if value < most
    )
    if most == 1.0:
        text = f"Under {_and(best)} every first token of every tenant is in time"
        return f"{text}{f'; {others}' if others else ''}."
    text = f"Under {_and(best)} the worst-off tenant, {tenant}, has {most:.1%} of its first tokens in time"
    return f"{text}{f', the most of {len(worst)} planners: {others}' if others else ''}."


def _to_tenths(part: float) -> float:
    """Return the part to a tenth of a per cent. Only a whole is shown as 100 %."""
    return part if part == 1.0 else min(0.999, round(part, 3))


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _name(runs: Sequence[Run]) -> str:
    return f"{runs[0].planner} ({runs[0].policy})"


def _in_time(runs: Sequence[Run], tenant: str) -> float:
    return fmean(run.tenants[tenant].in_time for run in runs)


def _header(by_planner: Sequence[Sequence[Run]]) -> str:
    run, seeds = by_planner[0][0], len(by_planner[0])
    count = f"{run.requests:,} requests of {len(run.tenants):,} tenant{'s' if len(run.tenants) != 1 else ''}"
    over = f" · mean of {seeds} seeds" if seeds > 1 else ""
    warnings = (*_overload(by_planner), *_outside_fit(by_planner))
    return (
        f"<header><p>headgate simulate --fleet</p><h1>{escape(run.workload)}</h1>"
        f"<p><strong>{escape(verdict(by_planner))}</strong></p><p>{count}{over}</p>"
        f"<p>Engines: {escape(run.engine)}. Step times are modelled; policies and planners are the product's own.</p>"
        f"{''.join(f'<p>{escape(note)}</p>' for note in warnings)}</header>\n"
    )


def _overload(by_planner: Sequence[Sequence[Run]]) -> list[str]:
    """Return a warning if the load was above what the fleet serves, under every planner or some."""
    busy = {
        _name(runs): runs[0].total_time_s - runs[0].last_arrival_s for runs in by_planner if _is_overloaded(runs[0])
    }
    if not busy:
        return []
    for_s = ", ".join(f"{seconds:,.0f} s under {name}" for name, seconds in busy.items())
    return [
        f"The load is above what the fleet can serve: it was busy after the last arrival for {for_s}. Waits then grow "
        "with the length of the workload."
    ]


def _is_overloaded(run: Run) -> bool:
    """Return whether first tokens were late, and at the last arrival much work was left that took long. A planner that
    holds deferred work back also ends late, with every first token in time."""
    return (
        run.all.in_time < 1.0
        and run.total_time_s > OVERLOADED * run.last_arrival_s
        and run.all.service > OVERLOADED * run.all.early_service
    )


def _outside_fit(by_planner: Sequence[Sequence[Run]]) -> list[str]:
    return list(dict.fromkeys(note for runs in by_planner for run in runs for note in run.outside_fit))


def _charts(by_planner: Sequence[Sequence[Run]]) -> str:
    every = by_planner[0][0].tenants
    shown = sorted(every, key=lambda name: (-every[name].requests, name))[:_CHARTED_MAX]
    plots = {
        "First tokens in time": _bars("%", shown, by_planner, lambda each: 100 * each.in_time),
        "Time to first token, P99": _bars("s", shown, by_planner, _p99),
        "Lateness, mean": _bars("s", shown, by_planner, lambda each: each.lateness_s),
    }
    drawn = (
        f"<figure><figcaption>{title} ({plot.y_label})</figcaption>{inline(title, plot)}</figure>"
        for title, plot in plots.items()
    )
    more = f" The {_CHARTED_MAX} with the most requests." if len(every) > _CHARTED_MAX else ""
    what = f"<h2>By tenant</h2><p>Every planner beside the others.{more}</p>"
    written = bars_csv("planner", {title.lower(): plot for title, plot in plots.items()})
    return f'<section>{what}<div class="charts">{"".join(drawn)}</div>{written}</section>\n'


def _bars(
    unit: str,
    tenants: Sequence[str],
    by_planner: Sequence[Sequence[Run]],
    figure: Callable[[Measures], float | None],
) -> Plot:
    return grouped_bars(
        unit, tenants, {_name(runs): [_mean(runs, tenant, figure) for tenant in tenants] for runs in by_planner}
    )


def _mean(runs: Sequence[Run], tenant: str, figure: Callable[[Measures], float | None]) -> float | None:
    return _mean_of([run.tenants[tenant] for run in runs], figure)


def _mean_of(every: Sequence[Measures], figure: Callable[[Measures], float | None]) -> float | None:
    values = [value for each in every if (value := figure(each)) is not None]
    return fmean(values) if values else None


def _planners(by_planner: Sequence[Sequence[Run]]) -> str:
    rows = [
        [
            escape(_name(runs)),
            f"{fmean(run.all.in_time for run in runs):.1%}",
            f"{fmean(run.all.served for run in runs):,.0f}",
            f"{fmean(run.requests_per_s for run in runs):,.2f}",
            f"{fmean(run.swaps for run in runs):,.0f}",
            f"{fmean(run.swapping_s for run in runs):,.0f}",
        ]
        for runs in by_planner
    ]
    headings = ["planner", "in time", "served", "requests/s", "swaps", "seconds swapping"]
    texts = "".join(
        f"<p>{escape(_name(runs))}: {text}</p>"
        for runs in by_planner
        for text in filter(None, (_reasons(runs[0]), forecast_text(runs[0]), waits_text(runs[0])))
    )
    return f"<section><h2>Planners</h2>{table(headings, rows)}{texts}</section>\n"


def _reasons(run: Run) -> str:
    """Return why requests were not served; "" if all were."""
    reasons = rejections_text(run)
    return f"Not served: {escape(reasons)}." if reasons else ""


def _tenants(by_planner: Sequence[Sequence[Run]]) -> str:
    rows = [
        [
            *_cells_of(tenant, runs, lambda run: run.tenants),
            f"{fmean(run.shares[tenant] for run in runs):.1%}",
            f"{fmean(run.swap_charges.get(tenant, 0.0) for run in runs):,.0f}" if _charges(runs) else "–",
        ]
        for tenant in by_planner[0][0].tenants
        for runs in by_planner
    ]
    what = (
        "Late: by how many seconds first tokens came too late, in the mean over the served requests. TTFT: time to the "
        "first token. Service: input tokens and twice the output tokens, of the whole run. Share: of the service until "
        "the last request arrived. Swap charge: what the tenant pays for swaps, in the unit of service. Only planners "
        "with the production's gate have such charges."
    )
    headings = ["tenant", *_MEASURED, "share", "swap charge (units)"]
    return f"<section><h2>Tenants</h2><p>{what}</p>{table(headings, rows, text=2)}</section>\n"


def _models(by_planner: Sequence[Sequence[Run]]) -> str:
    models = by_planner[0][0].models
    if len(models) < 2:
        return ""
    rows = [
        [*_cells_of(model, runs, lambda run: run.models), f"{fmean(run.loads.get(model, 0) for run in runs):,.0f}"]
        for model in models
        for runs in by_planner
    ]
    what = "Which models are waited for, and how often workers swapped to each."
    return (
        f"<section><h2>Models</h2><p>{what}</p>{table(['model', *_MEASURED, 'swaps to it'], rows, text=2)}</section>\n"
    )


_MEASURED = ("planner", "requests", "served", "in time", "late", "TTFT P50", "TTFT P99", "service (units)")


def _cells_of(key: str, runs: Sequence[Run], parts: Callable[[Run], Mapping[str, Measures]]) -> list[str]:
    """Return the cells that tenants and models both have."""
    every = [parts(run)[key] for run in runs]
    return [
        escape(key),
        escape(_name(runs)),
        f"{every[0].requests:,}",
        f"{fmean(each.served for each in every):,.0f}",
        f"{fmean(each.in_time for each in every):.1%}",
        *(_seconds(_mean_of(every, figure)) for figure in (lambda each: each.lateness_s, _p50, _p99)),
        f"{fmean(each.service for each in every):,.0f}",
    ]


def _charges(runs: Sequence[Run]) -> bool:
    return any(run.swap_charges for run in runs)


def _p50(measures: Measures) -> float | None:
    return None if measures.ttft_s is None else measures.ttft_s.p50


def _p99(measures: Measures) -> float | None:
    return None if measures.ttft_s is None else measures.ttft_s.p99


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f} s"


def _data(by_planner: Sequence[Sequence[Run]]) -> str:
    rows = [
        (
            *(run.planner, run.policy, run.seed, name, each.requests, each.served, round(each.in_time, 6)),
            *("" if value is None else round(value, 6) for value in (_p50(each), _p99(each))),
            round(each.service, 3),
            *("" if each.lateness_s is None else round(each.lateness_s, 6), round(run.shares[name], 6)),
            round(run.swap_charges.get(name, 0.0), 3) if run.swap_charges else "",
        )
        for runs in by_planner
        for run in runs
        for name, each in run.tenants.items()
    ]
    return data(_HEADINGS, rows)
