"""`headgate simulate --fleet FILE.yaml --planner NAMES`: planners on a fleet of workers with several models.

Without --json, the result is a table of planners, of SLO classes and of tenants. Of several seeds, each figure is the
mean over the seeds, and the first table has the standard deviation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from statistics import fmean

from rich.markup import escape
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.orders.registry import DEFAULT_ORDER
from headgate.cli.simulate_live import play_live
from headgate.cli.simulate_options import (
    DEFAULT_POLICY,
    SimulateOptions,
    check_gate,
    check_numbers,
    check_order,
    check_page,
    choose_policy,
    gate_notes,
    policy_names,
    tenant_weights,
)
from headgate.cli.simulate_tables import mean_with_spread, new_table, open_console, print_outside_fit
from headgate.cli.terminal.output import progress
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.run import check_fleet_run, most_service_per_s
from headgate.simulator.fleet.spec import FleetSpec, read_fleet
from headgate.simulator.gates.spec import FleetGateFile, GateSpec, read_gate
from headgate.simulator.measures.collector import Measures
from headgate.simulator.parallel import Processes
from headgate.simulator.report.drawing import check_installed
from headgate.simulator.run import Run, RunSpec, as_json, fleet_spread_of, forecast_text, rejections_text, waits_text
from headgate.simulator.simulate import simulate as simulate_one
from headgate.workloads.columns import parse_columns
from headgate.workloads.sources import Workload, open_workload

_APPLY = frozenset({
    "trace", "columns", "policy", "fleet", "planner", "weights", "gate", "tenants", "order", "seed", "seeds", "jitter",
    "processes", "report", "json", "live",
})  # fmt: skip
"""The options that apply to a fleet."""
_USES_SHARES = frozenset({"no-plan", "plan"})
"""The planners to which the shares of tenants matter."""


def simulate_on_fleet(options: SimulateOptions) -> None:
    """Run each planner and print the results. Raises ConfigurationError, with one sentence, for a wrong option."""
    specs = _specs(options)
    with progress("simulating") as on_done, Processes(options.processes, on_done=on_done) as pool:
        runs = pool.map(simulate_one, specs)
    print_outside_fit(runs)
    by_planner = [runs[start : start + options.seeds] for start in range(0, len(runs), options.seeds)]
    if options.live:
        by_planner.append([play_live(options, specs[0])])
    if options.report is not None:
        from headgate.simulator.report import fleet_page

        fleet_page.write(options.report, by_planner)
    if options.json:
        sys.stdout.write(json.dumps({"runs": [_as_json(each) for each in by_planner]}, allow_nan=False) + "\n")
    else:
        _print_runs(by_planner)


def _as_json(runs: Sequence[Run]) -> dict[str, object]:
    return {**as_json(runs[0]), **({"spread": fleet_spread_of(runs)} if len(runs) > 1 else {})}


def _specs(options: SimulateOptions) -> list[RunSpec]:
    """Make all seeds of the first planner, all seeds of the next, and so on."""
    if options.fleet is None or options.planner is None:
        raise ConfigurationError("--fleet and --planner belong together: give both")
    for field in fields(options):
        if field.name not in _APPLY and getattr(options, field.name) != field.default:
            raise ConfigurationError(f"--{field.name.replace('_', '-')} does not apply with --fleet")
    names = list(dict.fromkeys(name.strip() for name in options.planner.split(",") if name.strip()))
    if not names:
        raise ConfigurationError(f"--planner: name at least one of {', '.join(sorted(PLANNERS))}")
    check_gate(options.gate)
    policies = policy_names(choose_policy(options, DEFAULT_POLICY), "", "weighted")
    check_numbers(options)
    fleet = read_fleet(options.fleet)
    gate = _gate(options, fleet)
    if gate is not None and gate.classes is not None:
        fleet = replace(fleet, classes=gate.classes.ordered, default_class=gate.classes.usual.name)
    if options.report is not None:
        check_page(options.report)
        check_installed()
    workload = open_workload(options.trace or [], parse_columns(options.columns))
    first = RunSpec(
        workload,
        policies[0],
        fleet,
        gate=gate,
        weights=tenant_weights(options.weights, workload),
        jitter=options.jitter,
    )
    specs = [
        replace(first, policy=policy, planner=name, seed=seed)
        for name in names
        for policy in policies
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    for spec in specs[:: options.seeds]:
        check_fleet_run(spec)
    for note in (*_notes(options, first, names), *_late_failures(fleet, workload)):
        sys.stderr.write(f"note: {note}\n")
    return specs


def _gate(options: SimulateOptions, fleet: FleetSpec) -> GateSpec | None:
    order = options.order or DEFAULT_ORDER
    check_order(order)
    if options.tenants is None and options.order is None:
        return None
    if options.tenants is None:
        return GateSpec(1, order)
    gate = read_gate(options.tenants, order=order, kind=FleetGateFile, classes=[each.name for each in fleet.classes])
    if gate.throttling is not None:
        raise ConfigurationError(f"{options.tenants}: throttling does not apply with --fleet: leave it out")
    return gate


def _planners_with_shares() -> str:
    return " and ".join(sorted(_USES_SHARES))


def _notes(options: SimulateOptions, spec: RunSpec, planners: Sequence[str]) -> list[str]:
    notes = list(spec.workload.notes)
    if spec.gate is not None:
        notes += gate_notes(spec.gate, spec.workload, options.tenants)
    if options.gate == "on":
        notes.append(f"--gate changes nothing with --fleet: only {_planners_with_shares()} have the gate, and always.")
    has_shares = spec.gate is not None or spec.weights
    if has_shares and not _USES_SHARES.intersection(planners):
        notes.append(f"Shares matter only to the planners {_planners_with_shares()}.")
    guaranteed = 0.0 if spec.gate is None else sum(each.share.rate_per_s for each in spec.gate.tenants.values())
    if guaranteed and guaranteed > (most := most_service_per_s(spec)):
        notes.append(
            f"The guarantees sum to {guaranteed:,.0f} service units per second, and the fleet computes {most:,.0f} at "
            "most, without any swap: not all guarantees can be kept."
        )
    if options.seeds > 1 and not options.jitter:
        notes.append("Without --jitter, seeds differ only for planners and policies that draw random numbers.")
    return notes


def _late_failures(fleet: FleetSpec, workload: Workload) -> list[str]:
    """Return notes about failures that come when no request is left to arrive."""
    last_s = workload.last_arrival_s
    return [
        f"Worker {each.worker!r} fails at {each.at_s:g} s, and the last request arrives at {last_s:g} s."
        for each in fleet.failures
        if each.at_s > last_s
    ]


def _print_runs(by_planner: Sequence[Sequence[Run]]) -> None:
    console, first = open_console(), by_planner[0][0]
    console.print(
        f"[bold]{escape(first.workload)}[/]: {first.all.requests:,} requests of {len(first.tenants):,} "
        f"{'tenant' if len(first.tenants) == 1 else 'tenants'}"
        + (f"; mean ± standard deviation over {len(by_planner[0])} seeds" if len(by_planner[0]) > 1 else "")
    )
    has_policies = len({runs[0].policy for runs in by_planner}) > 1
    named = [f"{runs[0].planner} {runs[0].policy}" if has_policies else runs[0].planner for runs in by_planner]
    console.print(_planners(named, by_planner))
    console.print(_parts("class", named, by_planner, lambda run: run.classes))
    console.print(_parts("tenant", named, by_planner, lambda run: run.tenants, _of_tenants(by_planner)))
    if len(first.models) > 1:
        console.print(_parts("model", named, by_planner, lambda run: run.models, {"swaps to it": _loads}))
    for name, runs in zip(named, by_planner, strict=True):
        if reasons := rejections_text(runs[0]):
            console.print(f"{escape(name)} rejected: {escape(reasons)}", soft_wrap=True)
        for text in filter(None, (forecast_text(runs[0]), waits_text(runs[0]))):
            console.print(f"{escape(name)}: {text}", soft_wrap=True)


def _planners(named: Sequence[str], by_planner: Sequence[Sequence[Run]]) -> Table:
    table = new_table("planner", "in time", "served", "total s", "requests/s", "tokens/s", "swaps", "s swapping")
    for name, runs in zip(named, by_planner, strict=True):
        in_time = mean_with_spread([100 * run.all.in_time for run in runs], 1)
        table.add_row(
            escape(name),
            f"{in_time}%",
            mean_with_spread([run.all.served for run in runs], 0),
            mean_with_spread([run.total_time_s for run in runs], 1),
            mean_with_spread([run.requests_per_s for run in runs], 2),
            mean_with_spread([run.throughput_tokens_per_s for run in runs], 1),
            mean_with_spread([run.swaps for run in runs], 0),
            mean_with_spread([run.swapping_s for run in runs], 1),
        )
    return table


def _parts(
    heading: str,
    named: Sequence[str],
    by_planner: Sequence[Sequence[Run]],
    parts: Callable[[Run], Mapping[str, Measures]],
    more: Mapping[str, Callable[[Sequence[Run], str], str]] | None = None,
) -> Table:
    """Return the table of classes, tenants or models. `late`: seconds in the mean. `more`: further columns."""
    more = more or {}
    table = new_table(heading, "planner", "asked", "served", "in time", "late", "TTFT P50", "P99", "service", *more)
    for key in parts(by_planner[0][0]):
        for number, (name, runs) in enumerate(zip(named, by_planner, strict=True)):
            part, last = parts(runs[0])[key], number == len(named) - 1
            every = [parts(run)[key] for run in runs]
            table.add_row(
                escape(key) if number == 0 else "",
                escape(name),
                f"{part.requests:,}",
                f"{fmean(each.served for each in every):,.0f}",
                f"{fmean(each.in_time for each in every):.1%}",
                _seconds(each.lateness_s for each in every),
                _seconds(None if each.ttft_s is None else each.ttft_s.p50 for each in every),
                _seconds(None if each.ttft_s is None else each.ttft_s.p99 for each in every),
                f"{fmean(each.service for each in every):,.0f}",
                *(cell(runs, key) for cell in more.values()),
                end_section=last,
            )
    return table


def _of_tenants(by_planner: Sequence[Sequence[Run]]) -> dict[str, Callable[[Sequence[Run], str], str]]:
    """Return the columns that only the table of tenants has. `share`: until the last arrival."""
    columns: dict[str, Callable[[Sequence[Run], str], str]] = {"share": _share}
    return {**columns, "swap charge": _swap_charge} if any(runs[0].swap_charges for runs in by_planner) else columns


def _share(runs: Sequence[Run], tenant: str) -> str:
    return f"{fmean(run.shares[tenant] for run in runs):.1%}"


def _swap_charge(runs: Sequence[Run], tenant: str) -> str:
    """A planner that charges no tenant has a dash."""
    if not any(run.swap_charges for run in runs):
        return "–"
    return f"{fmean(run.swap_charges.get(tenant, 0.0) for run in runs):,.0f}"


def _loads(runs: Sequence[Run], model: str) -> str:
    return f"{fmean(run.loads.get(model, 0) for run in runs):,.0f}"


def _seconds(values: Iterable[float | None]) -> str:
    """Return the mean over the seeds that have a value."""
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f} s" if known else "–"
