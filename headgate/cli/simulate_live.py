"""`headgate simulate --fleet FILE.yaml --planner NAMES --live`: the same workload on processes, in real time."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.orders.registry import DEFAULT_ORDER
from headgate.cli.simulate_options import SimulateOptions
from headgate.cli.terminal.serving import fleet_values
from headgate.machine.options import validated
from headgate.simulator.fleet.spec import FleetSpec
from headgate.simulator.run import Run, RunSpec

_USUAL = {"engine": "modelled", "model": None}


def play_live(options: SimulateOptions, spec: RunSpec) -> Run:
    """Return the run. It takes as long as the workload. Raises ConfigurationError."""
    fleet = spec.engines
    if not isinstance(fleet, FleetSpec):
        raise TypeError("the run is of one engine")
    try:
        from headgate.demo.live_fleet import play_fleet
        from headgate.serve.server import ServeOptions
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--live needs {error.name}: pip install 'headgate[serve]'") from None
    values = fleet_values({**_USUAL, "fleet": options.fleet}, plays_failures=True)
    seconds = spec.workload.last_arrival_s
    _note(f"--live takes {seconds:,.0f} s, the time of the workload, and until its last answer")
    with TemporaryDirectory(prefix="headgate-live-") as folder:
        served = validated(
            ServeOptions,
            **{
                **values,
                "engine": "modelled",
                "home": Path(folder),
                "port": 0,
                "tenants": options.tenants,
                "order": options.order or DEFAULT_ORDER,
            },
        )
        return asyncio.run(play_fleet(spec, fleet, served, _note))


def _note(line: str) -> None:
    sys.stderr.write(f"note: {line}\n")
