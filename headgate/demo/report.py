"""The demo's result: a table, before and after as bars, the verdict and a sentence; and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from headgate.demo.measure import RunReport, TenantReport
from headgate.demo.scene import FLOOD, QUIET
from headgate.demo.verdict import DemoOutcome, Verdict

WITHOUT, WITH = "fcfs", "headgate"
LABELS = {WITHOUT: "without headgate", WITH: "with headgate"}
COLOURS = {DemoOutcome.PASSED: "green", DemoOutcome.FAILED: "red", DemoOutcome.INCONCLUSIVE: "yellow"}
BAR_CELLS = 40
LEGEND = (
    "tokens: input + output; TTFT: arrival to first token; total: to last token; "
    "share: of service while both tenants wait"
)


def say(console: Console, line: str) -> None:
    """Print a line as it is: not wrapped, without markup."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def as_json(runs: Mapping[str, RunReport], verdict: Verdict) -> dict[str, Any]:
    """Return `{"runs": {"fcfs": R, "headgate": R}, "verdict": {"passed", "outcome", "speed_change", "checks"}}`.

    Times are in seconds.
    """
    return {"runs": {name: asdict(run) for name, run in runs.items()}, "verdict": asdict(verdict)}


def print_report(console: Console, runs: Mapping[str, RunReport], verdict: Verdict) -> None:
    console.print()
    console.print(_table(runs))
    say(console, LEGEND)
    console.print()
    _print_bars(console, runs)
    for check in verdict.checks:
        colour, mark = ("green", "✔ passed") if check.passed else ("red", "✘ failed")
        console.print(f"check [{colour}]{mark}[/]: {check.detail}", highlight=False, soft_wrap=True)
    console.print(f"verdict: [bold {COLOURS[verdict.outcome]}]{verdict.line}[/]", highlight=False, soft_wrap=True)
    say(console, f"in words: {in_words(runs, verdict)}")


def in_words(runs: Mapping[str, RunReport], verdict: Verdict) -> str:
    """Return the result in plain sentences."""
    if verdict.outcome is DemoOutcome.INCONCLUSIVE:
        return "The machine did other work meanwhile, so the two runs cannot be compared. Try again when it is quiet."
    before, after = (runs[name].tenants[QUIET] for name in (WITHOUT, WITH))
    waits = (
        f"99 % of {QUIET}'s {after.requests} requests had their first token within {_seconds(after.ttft_p99_s)}, "
        f"and within {_seconds(before.ttft_p99_s)} without headgate"
    )
    if verdict.outcome is DemoOutcome.FAILED:
        failed = ", ".join(check.name for check in verdict.checks if not check.passed)
        return f"headgate did not keep its promise here ({failed}): {waits}."
    return f"While {FLOOD} sent more than the engine can serve, {waits}. The engine did as much work as before."


def _table(runs: Mapping[str, RunReport]) -> Table:
    table = Table(title="The same requests, played twice", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    table.add_column("tenant", no_wrap=True)
    for heading in ("sent", "failed", "tokens", "TTFT P50", "TTFT P99", "total P99", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, run in runs.items():
        for tenant, figures in run.tenants.items():
            table.add_row(LABELS[name], tenant, *_cells(figures))
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


def _print_bars(console: Console, runs: Mapping[str, RunReport]) -> None:
    waits = {name: run.tenants[QUIET].ttft_p99_s or 0.0 for name, run in runs.items()}
    work = {name: run.throughput_of_calibration for name, run in runs.items()}
    texts = {name: _seconds(run.tenants[QUIET].ttft_p99_s) for name, run in runs.items()}
    console.print(_bars(f"{QUIET}'s P99 first token: shorter is better", waits, texts))
    console.print()
    of_calibration = {name: f"{part:.0%}" for name, part in work.items()}
    console.print(_bars("the engine's work, of its measured speed: equal is good", work, of_calibration))
    console.print()


def _bars(title: str, values: Mapping[str, float], texts: Mapping[str, str]) -> Table:
    """Draw a bar for each run. The longest has BAR_CELLS cells."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    longest = max(values.values()) or 1.0
    for name, value in values.items():
        colour = "green" if name == WITH else "yellow"
        table.add_row(LABELS[name], Bar(longest, 0, value, width=BAR_CELLS, color=colour), texts[name])
    return table


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
