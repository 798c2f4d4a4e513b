"""`headgate simulate` runs policies on a workload, in virtual time."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from headgate.cli.simulate.on_fleet import simulate_on_fleet
from headgate.cli.simulate.options import SimulateOptions
from headgate.cli.simulate.run_specs import notes_of, run_specs
from headgate.cli.simulate.tables import print_tables
from headgate.cli.terminal.one_object import takes
from headgate.cli.terminal.progress import progress
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.summary import as_json, spread_of
from headgate.simulator.parallel import Processes
from headgate.simulator.run import Run
from headgate.simulator.simulate import simulate as simulate_one


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
