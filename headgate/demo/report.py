"""The demo's result, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from headgate.demo.measure import RunReport, TenantReport
from headgate.demo.verdict import Verdict

TITLES = {"fcfs": "fcfs (without headgate's policies)", "headgate": "headgate"}


def as_json(runs: Mapping[str, RunReport], verdict: Verdict) -> dict[str, Any]:
    """Return `{"runs": {"fcfs": R, "headgate": R}, "verdict": {"passed", "checks"}}`; times in seconds."""
    return {"runs": {name: asdict(run) for name, run in runs.items()}, "verdict": asdict(verdict)}


def print_report(console: Console, runs: Mapping[str, RunReport], verdict: Verdict) -> None:
    console.print(_table(runs))
    for name, run in runs.items():
        console.print(
            f"{TITLES[name]}: {run.throughput_tokens_per_s:.0f} tokens/s over {run.total_time_s:.1f} s; "
            f"both backlogged for {run.backlogged_s:.1f} s"
        )
    for check in verdict.checks:
        console.print(f"[{'green' if check.passed else 'red'}]{'✔' if check.passed else '✘'}[/] {check.detail}")
    colour, word = ("green", "passed") if verdict.passed else ("red", "failed")
    console.print(f"[bold {colour}]verdict: {word}[/]")


def _table(runs: Mapping[str, RunReport]) -> Table:
    table = Table(title="The same workload, twice", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("run", no_wrap=True)
    table.add_column("tenant", no_wrap=True)
    for heading in ("sent", "failed", "tokens", "TTFT P50", "TTFT P99", "total P99", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, run in runs.items():
        for number, (tenant, figures) in enumerate(run.tenants.items()):
            table.add_row(name if number == 0 else "", tenant, *_cells(figures))
    table.caption = "TTFT: arrival to first token; total: to last token; share: while both backlogged"
    return table


def _cells(figures: TenantReport) -> list[str]:
    share = figures.share_while_backlogged
    return [
        str(figures.requests),
        str(figures.failed),
        str(figures.input_tokens + figures.output_tokens),
        _seconds(figures.ttft_p50_s),
        _seconds(figures.ttft_p99_s),
        _seconds(figures.latency_p99_s),
        "–" if share is None else f"{share:.0%}",
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
