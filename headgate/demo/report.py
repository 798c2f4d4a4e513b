"""What the demo shows: a live view while the workload plays, and its result at the end.

The live view has queue, credit and latency of each tenant. The result is a table, before and after as bars, the verdict
and a sentence; and the same as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dispatcher.model.tenants import name_of
from dispatcher.monitor.picture import Picture
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.demo.measure import DemoOutcome, RunReport, Sample, TenantReport, Verdict
from headgate.demo.scene import FLOOD, QUIET

WITHOUT, WITH = "fcfs", "headgate"
LABELS = {WITHOUT: "without headgate", WITH: "with headgate"}
_COLOURS = {DemoOutcome.PASSED: "green", DemoOutcome.FAILED: "red", DemoOutcome.INCONCLUSIVE: "yellow"}
_BAR_CELLS = 40
_AS_MUCH = 0.97
"""From this ratio on, the engine did as much work: two equal runs differ by a few per cent."""
_LEGEND = (
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
    say(console, _LEGEND)
    console.print()
    _print_bars(console, runs)
    for check in verdict.checks:
        colour, mark = ("green", "✔ passed") if check.passed else ("red", "✘ failed")
        console.print(f"check [{colour}]{mark}[/]: {check.detail}", highlight=False, soft_wrap=True)
    console.print(f"verdict: [bold {_COLOURS[verdict.outcome]}]{verdict.line}[/]", highlight=False, soft_wrap=True)
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
    ratio = runs[WITH].throughput_of_calibration / runs[WITHOUT].throughput_of_calibration
    work = "as much work as before" if ratio >= _AS_MUCH else f"{ratio:.0%} of the work that it did without headgate"
    return f"While {FLOOD} sent more than the engine can serve, {waits}. The engine did {work}."


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
    """Draw a bar for each run. The longest has _BAR_CELLS cells."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    longest = max(values.values()) or 1.0
    for name, value in values.items():
        colour = "green" if name == WITH else "yellow"
        table.add_row(LABELS[name], Bar(longest, 0, value, width=_BAR_CELLS, color=colour), texts[name])
    return table


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


_RATE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class TenantNow:
    """A row of the view. `waiting`, `running`: at the gate. `credit`: service units, None without a guarantee.
    `service_rate`: service units a second."""

    name: str
    waiting: int
    running: int
    credit: float | None
    service_rate: float
    ttft_last_s: float | None
    ttft_p99_s: float | None
    sent: int
    answered: int


def tenant_now(name: str, samples: Sequence[Sample], picture: Picture | None, elapsed_s: float) -> TenantNow:
    """Make a tenant's row. `picture`: the gate; None if it is not known. `elapsed_s`: seconds since the play began."""
    own = [sample for sample in samples if sample.tenant == name]
    ttfts = [sample.ttft_s for sample in own if sample.ttft_s is not None]
    gate = picture.tenants if picture else ()
    found = next((each for each in gate if name_of(each.row.tenant) == name), None)
    return TenantNow(
        name=name,
        waiting=found.row.waiting if found else 0,
        running=found.row.running if found else 0,
        credit=found.row.credit if found else None,
        service_rate=_service_rate(own, elapsed_s),
        ttft_last_s=ttfts[-1] if ttfts else None,
        ttft_p99_s=percentile(ttfts, 0.99),
        sent=len(own),
        answered=sum(sample.end_s is not None for sample in own),
    )


def view(title: str, tenants: Sequence[TenantNow], sent: int, total: int, elapsed_s: float) -> RenderableType:
    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("tenant")
    for heading in ("waiting", "running", "credit", "service/s", "first token", "P99", "answered"):
        table.add_column(heading, justify="right")
    for tenant in tenants:
        table.add_row(*_live_cells(tenant))
    answered = sum(tenant.answered for tenant in tenants)
    progress = ProgressBar(total=max(1, total), completed=answered, width=40)
    caption = Text(f"{elapsed_s:5.1f} s   sent {sent} of {total}, answered {answered}")
    return Group(table, progress, caption)


def _live_cells(tenant: TenantNow) -> list[str]:
    return [
        tenant.name,
        str(tenant.waiting),
        str(tenant.running),
        "–" if tenant.credit is None else f"{tenant.credit:.0f}",
        f"{tenant.service_rate:.0f}",
        _seconds(tenant.ttft_last_s),
        _seconds(tenant.ttft_p99_s),
        f"{tenant.answered}/{tenant.sent}",
    ]


def _service_rate(samples: Sequence[Sample], elapsed_s: float) -> float:
    """Service per second in the last _RATE_WINDOW_S, from streamed pieces: the exact count comes with the last
    piece."""
    since = elapsed_s - _RATE_WINDOW_S
    pieces = sum(time_s > since for sample in samples for time_s in sample.token_times_s)
    prompts = sum(s.input_tokens for s in samples if s.first_token_s is not None and s.first_token_s > since)
    return WEIGHTED_TOKENS(prompts, pieces) / max(1.0, min(_RATE_WINDOW_S, elapsed_s))
