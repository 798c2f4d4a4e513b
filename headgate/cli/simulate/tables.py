"""Prints the result of `headgate simulate` without --json: a table of policies, and of tenants if there are few.

With --preemption, a table of the tiers and a line about evictions follow, from the first seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from statistics import fmean, stdev

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headgate.simulator.measures.collector import Measures, Percentiles, Scheduling, TierMeasures
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.run import Run

TENANTS_MAX = 12
"""The most tenants that the second table shows."""
WIDTH = 120
"""The width of the output if it is not a terminal."""
TIER_COLUMNS = ("tier", "policy", "served", "rejected", "TTFT P50", "P99", "in time", "TPOT", "whole P50", "P99",
                "tokens/s")  # fmt: skip


def print_tables(by_policy: Sequence[Sequence[Run]]) -> None:
    """Print the tables. `by_policy`: for each policy the runs of its seeds."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    first = by_policy[0][0]
    console.print(
        f"[bold]{escape(first.workload)}[/]: {first.requests:,} requests of {len(first.tenants):,} "
        f"{'tenant' if len(first.tenants) == 1 else 'tenants'}"
        + (f"; mean ± standard deviation over {len(by_policy[0])} seeds" if len(by_policy[0]) > 1 else "")
    )
    console.print(_policies(by_policy))
    if len(first.tenants) <= TENANTS_MAX:
        console.print(_tenants(by_policy))
    else:
        console.print(f"{len(first.tenants):,} tenants: --json and --report show each.")
    _print_tiers(console, by_policy)
    for runs in by_policy:
        _print_rejections(console, runs[0])


def _policies(by_policy: Sequence[Sequence[Run]]) -> Table:
    timed = any(run.timing is not None for runs in by_policy for run in runs)
    table = new_table("policy", "served", "rejected", "total s", "tokens/s", "diff. avg", "max", "bound")
    for heading in ("run s", "pick µs", "P99 µs") if timed else ():
        table.add_column(heading, justify="right")
    for runs in by_policy:
        cells = [
            _over(runs, lambda run: run.served, 0),
            _over(runs, lambda run: run.rejected, 0),
            _over(runs, lambda run: run.total_time_s, 1),
            _over(runs, lambda run: run.throughput_tokens_per_s, 1),
            _difference(runs, lambda difference: difference.avg),
            _difference(runs, lambda difference: difference.max),
            _nearest_bound(runs),
        ]
        table.add_row(escape(runs[0].policy), *cells, *_timing(runs))
    return table


def _timing(runs: Sequence[Run]) -> list[str]:
    rows = [astuple(run.timing) for run in runs if run.timing is not None]
    return [f"{fmean(column):.2f}" for column in zip(*rows, strict=True)]


def _tenants(by_policy: Sequence[Sequence[Run]]) -> Table:
    table = new_table(
        "tenant", "policy", "asked", "served", "rejected", "service", "TTFT P50", "P99", "whole P50", "P99"
    )
    for name in by_policy[0][0].tenants:
        for number, runs in enumerate(by_policy):
            shown, last = escape(name) if number == 0 else "", number == len(by_policy) - 1
            table.add_row(shown, escape(runs[0].policy), *_cells(runs[0].tenants[name]), end_section=last)
    return table


def _cells(tenant: Measures) -> list[str]:
    counts = [f"{count:,}" for count in (tenant.requests, tenant.served, tenant.rejected)]
    return [*counts, f"{tenant.service:,.0f}", *seconds(tenant.ttft_s), *seconds(tenant.latency_s)]


def _over(runs: Sequence[Run], measure: Callable[[Run], float], digits: int) -> str:
    return _mean([measure(run) for run in runs], digits)


def _difference(runs: Sequence[Run], measure: Callable[[Difference], float]) -> str:
    values = [measure(run.difference) for run in runs if run.difference is not None]
    return _mean(values, 1) if values else "–"


def _mean(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):,.{digits}f}"
    sd = stdev(values) if len(values) > 1 else 0.0
    return f"{mean} ± {sd:,.{max(digits, 1)}f}" if sd else mean


def _nearest_bound(runs: Sequence[Run]) -> str:
    """Return the highest fraction of a bound that a run reached, and the bound's theorem in the VTC paper."""
    fractions = [
        (bound["fraction"], theorem)
        for run in runs
        for theorem, bound in run.bounds.items()
        if bound["fraction"] is not None
    ]
    return "–" if not fractions else f"{max(fractions)[0]:.0%} of {max(fractions)[1]}"


def _print_tiers(console: Console, by_policy: Sequence[Sequence[Run]]) -> None:
    with_tiers = [(runs[0].policy, runs[0].scheduling) for runs in by_policy if runs[0].scheduling is not None]
    if not with_tiers:
        return
    table = new_table(*TIER_COLUMNS)
    for policy, scheduling in with_tiers:
        for number, (name, tier) in enumerate(scheduling.tiers.items()):
            last = number == len(scheduling.tiers) - 1
            table.add_row(name, escape(policy), *_tier_cells(tier), end_section=last)
    console.print(table)
    for policy, scheduling in with_tiers:
        console.print(f"{escape(policy)}: {_preemption_text(scheduling)}")


def _tier_cells(tier: TierMeasures) -> tuple[str, ...]:
    return (
        *(f"{tier.served:,}", f"{tier.rejected:,}"),
        *seconds(tier.ttft_s),
        "–" if tier.attainment is None else f"{tier.attainment:.1%}",
        "–" if tier.tpot_s is None else f"{1000 * tier.tpot_s:.0f} ms",
        *seconds(tier.latency_s),
        f"{tier.throughput_tokens_per_s:,.0f}",
    )


def _preemption_text(scheduling: Scheduling) -> str:
    rates = ", ".join(f"{count:.1f} {name}" for name, count in scheduling.preemptions_per_min.items())
    swapped_gb = (scheduling.swapped_out_bytes + scheduling.swapped_in_bytes) / 1e9
    return (
        f"preemptions a minute {rates}; {scheduling.recomputed_tokens:,} tokens computed again, "
        f"{swapped_gb:.1f} GB swapped"
    )


def _print_rejections(console: Console, run: Run) -> None:
    if run.rejections:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in run.rejections.items())
        console.print(f"{escape(run.policy)} rejected: {escape(reasons)}")


LEFT = ("policy", "tenant", "tier", "planner", "class")
"""The columns of text. All others are numbers, and are aligned right."""


def new_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in LEFT else "right")
    return table


def seconds(values: Percentiles | None) -> tuple[str, str]:
    """Return the cells of the median and the 99th percentile."""
    return ("–", "–") if values is None else (f"{values.p50:.2f} s", f"{values.p99:.2f} s")
