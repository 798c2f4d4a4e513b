"""Prints a table of the tiers and a line about evictions for `headgate simulate --preemption`, from the first seed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from headgate.cli.simulate.cells import new_table, seconds
from headgate.simulator.measures.tiers import Scheduling, TierMeasures
from headgate.simulator.run import Run

COLUMNS = ("tier", "policy", "served", "rejected", "TTFT P50", "P99", "in time", "TPOT", "whole P50", "P99", "tokens/s")


def print_tiers(console: Console, by_policy: Sequence[Sequence[Run]]) -> None:
    with_tiers = [(runs[0].policy, runs[0].scheduling) for runs in by_policy if runs[0].scheduling is not None]
    if not with_tiers:
        return
    table = new_table(*COLUMNS)
    for policy, scheduling in with_tiers:
        for number, (name, tier) in enumerate(scheduling.tiers.items()):
            last = number == len(scheduling.tiers) - 1
            table.add_row(name, escape(policy), *_cells(tier), end_section=last)
    console.print(table)
    for policy, scheduling in with_tiers:
        console.print(f"{escape(policy)}: {_preemption_text(scheduling)}")


def _cells(tier: TierMeasures) -> tuple[str, ...]:
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
