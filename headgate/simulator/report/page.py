"""The page: key figures, plots, bounds and tenants of the runs of one workload. The same runs give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import inf
from pathlib import Path
from statistics import fmean, stdev

from headgate.simulator.measures.collector import Measures, Percentiles
from headgate.simulator.measures.timeline import Timeline
from headgate.simulator.report.html import data, document, table, write_whole
from headgate.simulator.report.plots import figures, waits
from headgate.simulator.run import Run

OVERLOADED = 1.1
"""An engine that is busy for longer than this, relative to the last arrival, had more load than it serves."""
_REFUSED_PART = 0.01
TENANTS_MAX = 200
"""Rows of the table of tenants: those with the most service."""
_THEOREMS = {
    "4.3": "difference of the counters of waiting tenants",
    "4.4": "difference of the service of two backlogged tenants",
    "4.9": "service of any tenant beyond that of a backlogged tenant",
    "4.11": "service of the others while a tenant's first request waits",
    "4.13": "service missing to an equal share of an interval",
}


def write(path: Path, by_policy: Sequence[Sequence[Run]]) -> None:
    """Write the page. `by_policy` holds the runs of each policy, one per seed; only first runs need a timeline.

    Raises OSError, and ConfigurationError if matplotlib is not installed.
    """
    write_whole(path, page(by_policy))


def page(by_policy: Sequence[Sequence[Run]]) -> str:
    """Return the page as HTML. Raises ConfigurationError if matplotlib is not installed."""
    first = [runs[0] for runs in by_policy]
    plots = figures([run for run in first if run.timeline is not None])
    body = (
        f"{_header(by_policy)}{_key_figures(by_policy)}{waits(first) if plots else ''}{plots}{_bounds(first)}"
        f"{_tenants(first)}{_data(by_policy)}"
    )
    return document(first[0].workload, body)


def verdict(runs: Sequence[Run]) -> str:
    """Return what the policies mean for the tenant that asks for least, in one sentence."""
    asked = [name for name in runs[0].tenants if any(run.tenants[name].served for run in runs)]
    if not asked:
        reasons = ", ".join(sorted({reason for run in runs for reason in run.rejections}))
        return f"No request was served{f' ({reasons})' if reasons else ''}."
    service = {name: max(run.tenants[name].service for run in runs) for name in asked}
    lightest = min(service, key=lambda name: (service[name], name))
    best, *others = sorted(runs, key=lambda run: _p99_of_asked_s(run.tenants[lightest]))
    said = f"{lightest}, the tenant with the least service, waits"
    said += _wait_text(best, lightest, " for a first token (P99)")
    beside = ",".join(_wait_text(run, lightest) for run in others)
    refused = "".join(f" {run.policy} refuses {run.rejected:,} requests in all." for run in runs if run.rejected)
    return f"{said}{f', and{beside}' if beside else ''}.{refused}"


def _p99_of_asked_s(tenant: Measures) -> tuple[bool, float]:
    """Return the order of a tenant's waits: those after which so much is refused that the P99 of all its requests would
    be a refused one come last. What is served then waits little."""
    return tenant.rejected > _REFUSED_PART * tenant.requests, inf if tenant.ttft_s is None else tenant.ttft_s.p99


def _wait_text(run: Run, name: str, what: str = "") -> str:
    tenant = run.tenants[name]
    wait_s = "–" if tenant.ttft_s is None else f"{tenant.ttft_s.p99:,.2f}"
    text = f" {wait_s} s{what} under {run.policy}"
    if not tenant.rejected:
        return text
    return f"{text}, which refuses {tenant.rejected:,} of its {tenant.requests:,} requests"


def _overload(runs: Sequence[Run]) -> str:
    """Return a warning if the engine was long busy after the last arrival, under every policy or some; "" otherwise."""
    last_s = max((_last_served_arrival_s(run.timeline) for run in runs if run.timeline is not None), default=0.0)
    busy = {
        run.policy: run.total_time_s - last_s
        for run in runs
        if run.timeline is not None and run.total_time_s > OVERLOADED * last_s
    }
    if not busy:
        return ""
    for_s = ", ".join(f"{seconds:,.0f} s under {policy}" for policy, seconds in busy.items())
    return (
        f"The load is above the engine's capacity: it was busy after the last arrival for {for_s}. Waits then grow "
        "with the length of the workload, and totals show what was asked for."
    )


def _last_served_arrival_s(timeline: Timeline) -> float:
    """Return the end of the last bin with an arrival. A policy that refuses requests may end earlier than others."""
    sent = [at for rates in timeline.demand_rate.values() for at, rate in enumerate(rates) if rate]
    return (max(sent) + 1) * timeline.bin_s if sent else 0.0


def _header(by_policy: Sequence[Sequence[Run]]) -> str:
    run, seeds = by_policy[0][0], len(by_policy[0])
    policies = ", ".join(escape(runs[0].policy) for runs in by_policy)
    over = f" · {seeds} seeds: mean ± standard deviation; plots show the first seed" if seeds > 1 else ""
    tenants = f"{len(run.tenants):,} {'tenant' if len(run.tenants) == 1 else 'tenants'}"
    summary = f"{run.requests:,} requests of {tenants} · a pool of {run.pool_tokens:,} tokens · {policies}{over}"
    engine = f"Engine: {run.engine}. Step times are modelled; the policies are the product's own."
    said = [f"<strong>{escape(verdict([runs[0] for runs in by_policy]))}</strong>", summary, escape(engine)]
    first = [runs[0] for runs in by_policy]
    outside_fit = dict.fromkeys(note for each in first for note in each.outside_fit)
    said += [escape(text) for text in (_overload(first), *outside_fit) if text]
    lines = "".join(f"<p>{text}</p>" for text in said)
    return f"<header><p>headgate simulate</p><h1>{escape(run.workload)}</h1>{lines}</header>\n"


def _key_figures(by_policy: Sequence[Sequence[Run]]) -> str:
    columns: dict[str, Callable[[Run], float | None]] = {
        "served": lambda run: run.served,
        "rejected": lambda run: run.rejected,
        "total time (s)": lambda run: run.total_time_s,
        "tokens/s": lambda run: run.throughput_tokens_per_s,
        "service difference, mean (units/s)": lambda run: None if run.difference is None else run.difference.avg,
        "service difference, max (units/s)": lambda run: None if run.difference is None else run.difference.max,
    }
    rows = [[escape(runs[0].policy), *(_over(runs, figure) for figure in columns.values())] for runs in by_policy]
    return f"<section><h2>Key figures</h2>{table(['policy', *columns], rows)}</section>\n"


def _over(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> str:
    values = [value for value in map(figure, runs) if value is not None]
    if not values:
        return "–"
    sd = stdev(values) if len(values) > 1 else 0.0
    return f"{_short(fmean(values))} ± {_short(sd)}" if sd else _short(fmean(values))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.2f}"


def _bounds(runs: Sequence[Run]) -> str:
    rows = [
        [
            escape(run.policy),
            f"{theorem}: {_THEOREMS.get(theorem, '')}",
            f"{bound['worst']:,.0f}",
            f"{bound['bound']:,.0f}",
            "–" if bound["fraction"] is None else f"{bound['fraction']:.1%}",
            "✔ holds" if bound["held"] else "✘ broken",
        ]
        for run in runs
        for theorem, bound in run.bounds.items()
    ]
    if not rows:
        return ""
    headings = ["policy", "theorem of the VTC paper", "worst case", "bound", "fraction", ""]
    return f"<section><h2>Bounds</h2>{table(headings, rows, text=2)}</section>\n"


def _tenants(runs: Sequence[Run]) -> str:
    names = {name for run in runs for name in run.tenants}
    most = sorted(names, key=lambda name: (-max(_service(run, name) for run in runs), name))
    has_due = any(run.all.due for run in runs)
    rows = [
        _tenant(run, name, has_due=has_due)
        for name in sorted(most[:TENANTS_MAX])
        for run in runs
        if name in run.tenants
    ]
    more = (
        f"<p>The {TENANTS_MAX} of {len(most):,} tenants with the most service.</p>" if len(most) > TENANTS_MAX else ""
    )
    headings = ["tenant", "policy", "requests", "served", "rejected", "service (units)"]
    headings += [*["first token in time"] * has_due, "TTFT P50", "TTFT P99", "latency P50", "latency P99"]
    return f"<section><h2>Tenants</h2>{more}{table(headings, rows, text=2)}</section>\n"


def _service(run: Run, name: str) -> float:
    return run.tenants[name].service if name in run.tenants else 0.0


def _tenant(run: Run, name: str, *, has_due: bool) -> list[str]:
    tenant = run.tenants[name]
    counts = [f"{count:,}" for count in (tenant.requests, tenant.served, tenant.rejected)]
    times = [*_seconds(tenant.ttft_s), *_seconds(tenant.latency_s)]
    in_time = [f"{tenant.in_time:.1%}" if tenant.due else "–"] if has_due else []
    return [escape(name), escape(run.policy), *counts, f"{tenant.service:,.0f}", *in_time, *times]


def _seconds(values: Percentiles | None) -> tuple[str, str]:
    return ("–", "–") if values is None else (f"{values.p50:,.2f} s", f"{values.p99:,.2f} s")


def _data(by_policy: Sequence[Sequence[Run]]) -> str:
    headings = ("policy", "seed", "tenant", "requests", "served", "rejected", "service", "ttft_p50_s", "ttft_p99_s",
                "latency_p50_s", "latency_p99_s", "in_time")  # fmt: skip
    rows = [
        (
            *(run.policy, run.seed, name, each.requests, each.served, each.rejected, round(each.service, 3)),
            *(_number(times, part) for times in (each.ttft_s, each.latency_s) for part in ("p50", "p99")),
            round(each.in_time, 4) if each.due else "",
        )
        for runs in by_policy
        for run in runs
        for name, each in run.tenants.items()
    ]
    return data(headings, rows)


def _number(values: Percentiles | None, part: str) -> str:
    return "" if values is None else f"{getattr(values, part):.6g}"
