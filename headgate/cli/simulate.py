"""`headgate simulate` runs policies on a workload, in virtual time, and prints the result.

With --fleet, it compares planners on a fleet of workers with several models (simulate_fleet.py). With --fit, it makes a
profile of the engine from a server's log (simulate_fit.py). Without --json, the result is a table of policies, and of
tenants if there are few. With --preemption, a table of the tiers and a line about evictions follow, of the first seed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from headgate.cli.simulate_fit import fit_and_print
from headgate.cli.simulate_fleet import simulate_on_fleet
from headgate.cli.simulate_options import SimulateOptions, notes_of, run_specs
from headgate.cli.simulate_tables import mean_with_spread, new_table, open_console, print_outside_fit, seconds
from headgate.cli.terminal.one_object import takes
from headgate.cli.terminal.output import progress
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.collector import Measures, Scheduling, TierMeasures
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.parallel import Processes
from headgate.simulator.run import Run, as_json, spread_of
from headgate.simulator.simulate import simulate as simulate_one


@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Simulate a workload under one policy or several: the project's own policies, with a model of the GPU.

    The same arguments give the same output, byte for byte (without --timing).
    """
    if options.fit is not None:
        fit_and_print(options, options.fit)
        return
    if options.fleet is not None or options.planner is not None:
        simulate_on_fleet(options)
        return
    if options.live:
        raise ConfigurationError("--live needs --fleet and --planner")
    specs = run_specs(options)
    for note in notes_of(options, specs[0]):
        sys.stderr.write(f"note: {note}\n")
    with progress("simulating") as on_done, Processes(options.processes, on_done=on_done) as pool:
        runs = pool.map(simulate_one, specs)
    print_outside_fit(runs)
    by_policy = [runs[start : start + options.seeds] for start in range(0, len(runs), options.seeds)]
    named = _with_orders(by_policy)
    if options.report is not None:
        from headgate.simulator.report import page

        page.write(options.report, named)
    if options.json:
        _print_json(by_policy, specs[0].gate)
    else:
        _print_tables(named)


def _with_orders(by_policy: Sequence[Sequence[Run]]) -> Sequence[Sequence[Run]]:
    """Return the runs with the gate's order in the names of their policies, if there are several orders."""
    if len({runs[0].order for runs in by_policy}) == 1:
        return by_policy
    return [[replace(run, policy=f"{run.order}, then {run.policy}") for run in runs] for runs in by_policy]


def _print_json(by_policy: Sequence[Sequence[Run]], gate: GateSpec | None) -> None:
    slots = 0 if gate is None else gate.slots
    rows = [
        {**as_json(runs[0]), **_gate_json(runs[0], slots), **({"spread": spread_of(runs)} if len(runs) > 1 else {})}
        for runs in by_policy
    ]
    sys.stdout.write(json.dumps(_finite({"runs": rows}), allow_nan=False) + "\n")


def _gate_json(run: Run, slots: int) -> dict[str, Any]:
    return {"gate": {"order": run.order, "slots": slots}} if run.order else {}


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


TENANTS_MAX = 12
"""The most tenants that the second table shows."""
_TIER_COLUMNS = ("tier", "policy", "served", "rejected", "TTFT P50", "P99", "in time", "TPOT", "whole P50", "P99",
                "tokens/s")  # fmt: skip


def _print_tables(by_policy: Sequence[Sequence[Run]]) -> None:
    """Print the tables. `by_policy`: for each policy the runs of its seeds."""
    console, first = open_console(), by_policy[0][0]
    console.print(
        f"[bold]{escape(first.workload)}[/]: {first.requests:,} {'request' if first.requests == 1 else 'requests'} "
        f"of {len(first.tenants):,} "
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
    has_prefixes = any(run.prefix_hit_rate is not None for runs in by_policy for run in runs)
    for heading in ("prefix hits", "requests/s") if has_prefixes else ():
        table.add_column(heading, justify="right")
    has_adapters = any(run.adapter_loads for runs in by_policy for run in runs)
    if has_adapters:
        table.add_column("adapter loads", justify="right")
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
        if has_prefixes:
            cells.append(f"{fmean(run.prefix_hit_rate or 0.0 for run in runs):.1%}")
            cells.append(_over(runs, lambda run: run.requests_per_s, 2))
        if has_adapters:
            cells.append(_over(runs, lambda run: sum(run.adapter_loads.values()), 0))
        table.add_row(escape(runs[0].policy), *cells, *_timing(runs))
    return table


def _timing(runs: Sequence[Run]) -> list[str]:
    rows = [astuple(run.timing) for run in runs if run.timing is not None]
    return [f"{fmean(column):.2f}" for column in zip(*rows, strict=True)]


def _tenants(by_policy: Sequence[Sequence[Run]]) -> Table:
    has_due = by_policy[0][0].all.due > 0
    times = ("TTFT P50", "P99", "whole P50", "P99")
    table = new_table("tenant", "policy", "asked", "served", "rejected", "service", *["in time"] * has_due, *times)
    for name in by_policy[0][0].tenants:
        for number, runs in enumerate(by_policy):
            shown, last = escape(name) if number == 0 else "", number == len(by_policy) - 1
            table.add_row(
                shown, escape(runs[0].policy), *_cells(runs[0].tenants[name], has_due=has_due), end_section=last
            )
    return table


def _cells(tenant: Measures, *, has_due: bool) -> list[str]:
    counts = [f"{count:,}" for count in (tenant.requests, tenant.served, tenant.rejected)]
    in_time = [f"{tenant.in_time:.1%}" if tenant.due else "–"] if has_due else []
    return [*counts, f"{tenant.service:,.0f}", *in_time, *seconds(tenant.ttft_s), *seconds(tenant.latency_s)]


def _over(runs: Sequence[Run], measure: Callable[[Run], float], digits: int) -> str:
    return mean_with_spread([measure(run) for run in runs], digits)


def _difference(runs: Sequence[Run], measure: Callable[[Difference], float]) -> str:
    values = [measure(run.difference) for run in runs if run.difference is not None]
    return mean_with_spread(values, 1) if values else "–"


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
    table = new_table(*_TIER_COLUMNS)
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
