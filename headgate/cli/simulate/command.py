"""`headgate simulate` runs policies on a workload, in virtual time.

With --fleet, it compares planners on a fleet of workers with several models.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from headgate.cli.simulate.options import SimulateOptions, notes_of, policy_names, run_specs
from headgate.cli.simulate.tables import new_table, print_tables, seconds
from headgate.cli.terminal.one_object import takes
from headgate.cli.terminal.output import progress
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.run import check_fleet_run
from headgate.simulator.fleet.spec import read_fleet
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.collector import Measures
from headgate.simulator.parallel import Processes
from headgate.simulator.run import Run, RunSpec, as_json, spread_of
from headgate.simulator.simulate import simulate as simulate_one
from headgate.workloads.sources import open_workload


@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Simulate a workload under one policy or several: the project's own policies, with a model of the GPU.

    The same arguments give the same output, byte for byte (without --timing).
    """
    if options.fleet is not None or options.planner is not None:
        simulate_on_fleet(options)
        return
    specs = run_specs(options)
    for note in notes_of(options, specs[0]):
        sys.stderr.write(f"note: {note}\n")
    with progress("simulating") as on_done, Processes(options.processes, on_done=on_done) as pool:
        runs = pool.map(simulate_one, specs)
    by_policy = [runs[start : start + options.seeds] for start in range(0, len(runs), options.seeds)]
    if options.report is not None:
        from headgate.simulator.report import page

        page.write(options.report, by_policy)
    if options.json:
        _print_json(by_policy, specs[0].gate)
    else:
        print_tables(by_policy)


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


APPLY = frozenset({"trace", "policy", "fleet", "planner", "seed", "processes", "json"})
"""The options that apply to a fleet."""
WIDTH = 120


def simulate_on_fleet(options: SimulateOptions) -> None:
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
        if field.name not in APPLY and getattr(options, field.name) != field.default:
            raise ConfigurationError(f"--{field.name.replace('_', '-')} does not apply with --fleet")
    names = list(dict.fromkeys(name.strip() for name in options.planner.split(",") if name.strip()))
    if not names:
        raise ConfigurationError(f"--planner: name at least one of {', '.join(sorted(PLANNERS))}")
    policies = policy_names(options.policy, "", "weighted")
    fleet, workload = read_fleet(options.fleet), open_workload(options.trace)
    specs = [RunSpec(workload, policy, fleet, planner=name, seed=options.seed) for name in names for policy in policies]
    for spec in specs:
        check_fleet_run(spec)
    for note in workload.notes:
        sys.stderr.write(f"note: {note}\n")
    return specs


def _print_runs(runs: Sequence[Run]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
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
    table = new_table("planner", "in time", "served", "total s", "requests/s", "tokens/s", "swaps", "s swapping")
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
    table = new_table(heading, "planner", "asked", "served", "in time", "TTFT P50", "P99")
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
