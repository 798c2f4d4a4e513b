"""Options of `headgate serve` and `headgate local`: the processes that both start on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatcher.model.errors import ConfigurationError

Port = Annotated[int, typer.Option(help="Port of the HTTP front, which speaks OpenAI's API; 0 takes a free port.")]
Fronts = Annotated[int, typer.Option(help="Number of HTTP fronts, on --port and the ports after it.")]
Workers = Annotated[int, typer.Option(help="Number of worker processes.")]
ENGINE_HELP = "Engine of the workers: vllm, openai, transformers, or modelled (needs no torch)."
Engine = Annotated[str, typer.Option(help=ENGINE_HELP)]
Url = Annotated[str | None, typer.Option(help="With --engine openai: URL of the server, ending in /v1.")]
ContextTokens = Annotated[int | None, typer.Option(help="With --engine openai: the context length of its model.")]
Model = Annotated[str | None, typer.Option(help="Folder of a Hugging Face model; default: a small one, built here.")]
FLEET_HELP = "YAML file of a fleet that swaps models, as for `headgate simulate --fleet`: workers and their models."
Fleet = Annotated[Path | None, typer.Option(help=FLEET_HELP)]
Slots = Annotated[int, typer.Option(help="Requests that a worker takes at a time.")]
Order = Annotated[
    str, typer.Option(help="Order at the gate: bwfq, sfq, fcfs, ratio+wake or ratio (for guarantees only).")
]
Policy = Annotated[str, typer.Option(help="Order of the engine's queue: vtc, fcfs or tiered:vtc.")]
StartTimeout = Annotated[float, typer.Option(help="Seconds that each process may take to start.")]
SLOTS_MAX = 64
"""A worker of this machine takes at most so many requests at a time, whatever its profile allows."""


def fleet_values(fleet: Path | None, engine: str, model: str | None) -> dict[str, Any]:
    """Return the options of a fleet's file (headgate/simulator/fleet/file.py); none without a file.

    The step times are those of the engine that runs here; from the profiles come only the slots. Raises
    ConfigurationError.
    """
    if fleet is None:
        return {}
    from headgate.local.options import SwappingWorker
    from headgate.simulator.fleet.file import read_fleet

    if engine == "openai" or model is not None:
        raise ConfigurationError("--fleet has the models of each worker: leave out --model, and use another --engine")
    spec = read_fleet(fleet)
    workers = []
    for worker in spec.workers:
        names = sorted(worker.models, key=lambda name: name != worker.loaded)
        slots = min(SLOTS_MAX, *(model.slots for model in worker.models.values()))
        workers.append(SwappingWorker(tuple((name, worker.models[name].swap_s) for name in names), slots))
    classes = {each.name: {"first_token_s": each.first_token_s, "deferred": each.is_deferred} for each in spec.classes}
    return {
        "fleet": fleet, "swapping": workers, "workers": len(workers), "slo_classes": json.dumps(classes),
    }  # fmt: skip
