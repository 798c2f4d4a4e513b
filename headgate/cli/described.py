"""Options of `headgate local --file`: the pool of headgate.yaml, as processes of this machine.

The weights of a pool are in S3, so its workers have the modelled engine here. Instances, network and domain have no
meaning on one machine and are not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.model.errors import ConfigurationError
from headgate.local.options import WORKER_BATCH_MAX, WORKER_SLOTS_MAX, WORKERS_MAX

if TYPE_CHECKING:
    from headgate.deployment.model import Deployment

IN_THE_FILE = ("workers", "slots", "model", "fleet", "url", "context_tokens")
"""Parameters of `headgate local` that the file replaces."""
ENGINE = "modelled"


def described_values(file: Path | None, engine: str, is_given: Callable[[str], bool]) -> dict[str, Any]:
    """Return the options that headgate.yaml decides; none without a file.

    `is_given`: whether the command line has a parameter. Raises ConfigurationError.
    """
    if file is None:
        return {}
    from headgate.deployment.loading import load

    for parameter in filter(is_given, IN_THE_FILE):
        option = "--" + parameter.replace("_", "-")
        raise ConfigurationError(f"--file has the workers and their model: leave out {option}")
    if is_given("engine") and engine != ENGINE:
        raise ConfigurationError(f"--file has models in S3, which no engine loads here: use --engine {ENGINE}")
    return {"file": file, "engine": ENGINE, **values_of(load(file), file)}


def values_of(deployment: Deployment, file: Path) -> dict[str, Any]:
    """Return the options of a deployment with one pool. Raises ConfigurationError for several pools."""
    if len(deployment.pools) > 1:
        names = ", ".join(deployment.pools)
        raise ConfigurationError(f"{file} has the pools {names}; `headgate local` runs one: use a file with one pool")
    ((name, pool),) = deployment.pools.items()
    variables, settings = deployment.environment(), deployment.pool_settings(name)
    own = settings.get("slo_classes")
    return {
        "pool": name,
        "model": pool.model_name or None,
        "workers": min(WORKERS_MAX, max(1, pool.count.min)),
        "slots": min(WORKER_SLOTS_MAX, pool.slots),
        "batch": min(WORKER_BATCH_MAX, pool.batch),
        "slo_classes": json.dumps(own) if own else variables.pop("HEADGATE_SLO_CLASSES", ""),
        "variables": {**variables, "HEADGATE_POOLS": json.dumps({name: settings})},
    }
