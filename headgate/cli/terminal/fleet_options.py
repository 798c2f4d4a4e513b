"""The options of `headgate serve` and `headgate local` that a fleet's file has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dispatcher.model.errors import ConfigurationError
from headgate.machine.options import SwappingWorker

SLOTS_MAX = 64
"""A worker of this machine takes at most so many requests at a time, whatever its profile allows."""


def fleet_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fleet's file (headgate/simulator/fleet/file.py); none without a file.

    The step times are those of the engine that runs here; from the profiles come only the slots. Raises
    ConfigurationError.
    """
    fleet, engine, model = options["fleet"], options["engine"], options["model"]
    if fleet is None:
        return {}
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
