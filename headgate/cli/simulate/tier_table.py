"""`headgate simulate --preemption`: what became of each tier, and what was evicted. Of several seeds, the first's."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headgate.simulator.measures.percentiles import Percentiles
from headgate.simulator.measures.tiers import Scheduling, TierMeasures
from headgate.simulator.run import Run

COLUMNS = ("served", "rejected", "TTFT P50", "P99", "in time", "TPOT", "whole P50", "P99", "tokens/s")


def print_tiers(console: Console, by_policy: Sequence[Sequence[Run]]) -> None:
    found = [(runs[0].policy, runs[0].scheduling) for runs in by_policy if runs[0].scheduling is not None]
    if not found:
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in ("tier", "policy"):
        table.add_column(heading)
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for policy, scheduling in found:
        for number, (name, figures) in enumerate(scheduling.tiers.items()):
            last = number == len(scheduling.tiers) - 1
            table.add_row(name, escape(policy), *_cells(figures), end_section=last)
    console.print(table)
    for policy, scheduling in found:
        console.print(f"{escape(policy)}: {_evicted(scheduling)}")


def _cells(figures: TierMeasures) -> tuple[str, ...]:
    return (
        *(f"{figures.served:,}", f"{figures.rejected:,}"),
        *_seconds(figures.ttft_s),
        "–" if figures.attainment is None else f"{figures.attainment:.1%}",
        "–" if figures.tpot_s is None else f"{1000 * figures.tpot_s:.0f} ms",
        *_seconds(figures.latency_s),
        f"{figures.throughput_tokens_per_s:,.0f}",
    )


def _seconds(values: Percentiles | None) -> tuple[str, str]:
    return ("–", "–") if values is None else (f"{values.p50:.2f} s", f"{values.p99:.2f} s")


def _evicted(scheduling: Scheduling) -> str:
    rates = ", ".join(f"{count:.1f} {name}" for name, count in scheduling.preemptions_per_min.items())
    swapped_gb = (scheduling.swapped_out_bytes + scheduling.swapped_in_bytes) / 1e9
    return (
        f"preemptions a minute {rates}; {scheduling.recomputed_tokens:,} tokens computed again, "
        f"{swapped_gb:.1f} GB swapped"
    )
