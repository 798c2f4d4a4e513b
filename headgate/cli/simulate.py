"""`headgate simulate` runs policies on a workload, in virtual time, and prints the result.

With --fleet, it compares planners on a fleet of workers with several models. With --fit, it makes a profile of the
engine from a server's log (simulate_fit.py). Without --json, the result is a table of
policies, and of tenants if there are few. With --preemption, a table of the tiers and a line about evictions follow,
from the first seed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from statistics import fmean, stdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from headgate.cli.simulate_fit import fit_and_print
from headgate.cli.simulate_options import (
    DEFAULT_POLICY,
    SimulateOptions,
    choose_policy,
    notes_of,
    policy_names,
    run_specs,
)
from headgate.cli.terminal.one_object import takes
from headgate.cli.terminal.output import progress
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.run import check_fleet_run
from headgate.simulator.fleet.spec import read_fleet
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.collector import Measures, Percentiles, Scheduling, TierMeasures
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.parallel import Processes
from headgate.simulator.run import Run, RunSpec, as_json, spread_of
from headgate.simulator.simulate import simulate as simulate_one
from headgate.workloads.sources import open_workload


@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Simulate a workload under one policy or several: the project's own policies, with a model of the GPU.

    The same arguments give the same output, byte for byte (without --timing).
    """
    if options.fit is not None:
        fit_and_print(options, options.fit)
        return
    if options.fleet is not None or options.planner is not None:
        _simulate_on_fleet(options)
        return
    specs = run_specs(options)
    for note in notes_of(options, specs[0]):
        sys.stderr.write(f"note: {note}\n")
    with progress("simulating") as on_done, Processes(options.processes, on_done=on_done) as pool:
        runs = pool.map(simulate_one, specs)
    for note in dict.fromkeys(note for run in runs for note in run.outside_fit):
        sys.stderr.write(f"note: {note}\n")
    by_policy = [runs[start : start + options.seeds] for start in range(0, len(runs), options.seeds)]
    if options.report is not None:
        from headgate.simulator.report import page

        page.write(options.report, by_policy)
    if options.json:
        _print_json(by_policy, specs[0].gate)
    else:
        _print_tables(by_policy)


def _print_json(by_policy: Sequence[Sequence[Run]], gate: GateSpec | None) -> None:
    before = {} if gate is None else {"gate": {"order": gate.order, "slots": gate.slots}}
    rows = [
        {**as_json(runs[0]), **before, **({"spread": spread_of(runs)} if len(runs) > 1 else {})} for runs in by_policy
    ]
    sys.stdout.write(json.dumps(_finite({"runs": rows}), allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_APPLY = frozenset({"trace", "policy", "fleet", "planner", "seed", "processes", "json"})
"""The options that apply to a fleet."""
_WIDTH = 120


def _simulate_on_fleet(options: SimulateOptions) -> None:
    """Run each planner and print the results. Raises ConfigurationError, with one sentence, for a wrong option."""
    specs = _specs(options)
    with progress("simulating") as on_done, Processes(options.processes, on_done=on_done) as pool:
        runs = pool.map(simulate_one, specs)
    if options.json:
        sys.stdout.write(json.dumps({"runs": [as_json(run) for run in runs]}, allow_nan=False) + "\n")
    else:
        _print_runs(runs)


def _specs(options: SimulateOptions) -> list[RunSpec]:
    if options.fleet is None or options.planner is None:
        raise ConfigurationError("--fleet and --planner belong together: give both")
    for field in fields(options):
        if field.name not in _APPLY and getattr(options, field.name) != field.default:
            raise ConfigurationError(f"--{field.name.replace('_', '-')} does not apply with --fleet")
    names = list(dict.fromkeys(name.strip() for name in options.planner.split(",") if name.strip()))
    if not names:
        raise ConfigurationError(f"--planner: name at least one of {', '.join(sorted(PLANNERS))}")
    policies = policy_names(choose_policy(options, DEFAULT_POLICY), "", "weighted")
    fleet, workload = read_fleet(options.fleet), open_workload(options.trace or [])
    specs = [RunSpec(workload, policy, fleet, planner=name, seed=options.seed) for name in names for policy in policies]
    for spec in specs:
        check_fleet_run(spec)
    for note in workload.notes:
        sys.stderr.write(f"note: {note}\n")
    return specs


def _print_runs(runs: Sequence[Run]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    first = runs[0]
    console.print(
        f"[bold]{escape(first.workload)}[/]: {first.all.requests:,} requests of {len(first.tenants):,} "
        f"{'tenant' if len(first.tenants) == 1 else 'tenants'}"
    )
    named = [f"{run.planner} {run.policy}" if _has_policies(runs) else run.planner for run in runs]
    console.print(_planners(named, runs))
    console.print(_parts("class", named, [run.classes for run in runs]))
    console.print(_parts("tenant", named, [run.tenants for run in runs]))


def _has_policies(runs: Sequence[Run]) -> bool:
    return len({run.policy for run in runs}) > 1


def _planners(named: Sequence[str], runs: Sequence[Run]) -> Table:
    table = _new_table("planner", "in time", "served", "total s", "requests/s", "tokens/s", "swaps", "s swapping")
    for name, run in zip(named, runs, strict=True):
        table.add_row(
            escape(name),
            f"{run.all.in_time:.1%}",
            f"{run.all.served:,}",
            f"{run.total_time_s:,.1f}",
            f"{run.requests_per_s:,.2f}",
            f"{run.throughput_tokens_per_s:,.1f}",
            f"{run.swaps:,}",
            f"{run.swapping_s:,.1f}",
        )
    return table


def _parts(heading: str, named: Sequence[str], found: Sequence[Mapping[str, Measures]]) -> Table:
    table = _new_table(heading, "planner", "asked", "served", "in time", "TTFT P50", "P99")
    for key in found[0]:
        for number, (name, parts) in enumerate(zip(named, found, strict=True)):
            part, last = parts[key], number == len(named) - 1
            table.add_row(
                escape(key) if number == 0 else "",
                escape(name),
                f"{part.requests:,}",
                f"{part.served:,}",
                f"{part.in_time:.1%}",
                *seconds(part.ttft_s),
                end_section=last,
            )
    return table


TENANTS_MAX = 12
"""The most tenants that the second table shows."""

"""The width of the output if it is not a terminal."""
_TIER_COLUMNS = ("tier", "policy", "served", "rejected", "TTFT P50", "P99", "in time", "TPOT", "whole P50", "P99",
                "tokens/s")  # fmt: skip


def _print_tables(by_policy: Sequence[Sequence[Run]]) -> None:
    """Print the tables. `by_policy`: for each policy the runs of its seeds."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
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
    table = _new_table("policy", "served", "rejected", "total s", "tokens/s", "diff. avg", "max", "bound")
    has_prefixes = any(run.prefix_hit_rate is not None for runs in by_policy for run in runs)
    for heading in ("prefix hits", "requests/s") if has_prefixes else ():
        table.add_column(heading, justify="right")
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
        table.add_row(escape(runs[0].policy), *cells, *_timing(runs))
    return table


def _timing(runs: Sequence[Run]) -> list[str]:
    rows = [astuple(run.timing) for run in runs if run.timing is not None]
    return [f"{fmean(column):.2f}" for column in zip(*rows, strict=True)]


def _tenants(by_policy: Sequence[Sequence[Run]]) -> Table:
    table = _new_table(
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
    table = _new_table(*_TIER_COLUMNS)
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


_LEFT = ("policy", "tenant", "tier", "planner", "class")
"""The columns of text. All others are numbers, and are aligned right."""


def _new_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _LEFT else "right")
    return table


def seconds(values: Percentiles | None) -> tuple[str, str]:
    """Return the cells of the median and the 99th percentile."""
    return ("–", "–") if values is None else (f"{values.p50:.2f} s", f"{values.p99:.2f} s")
