"""Options of `headgate local --file`: the pool of headgate.yaml, as processes of this machine.

The weights of a pool are in S3, so its workers have the modelled engine here. Before a server that runs already, a
worker forwards to it. Instances, network and domain have no meaning on one machine and are not used.
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
    from headgate.deployment.pool import Pool

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
    return {"file": file, **values_of(load(file), file)}


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
        **(_forwarding(pool, file) if pool.servers else _modelled(pool)),
        "slo_classes": json.dumps(own) if own else variables.pop("HEADGATE_SLO_CLASSES", ""),
        "variables": {**variables, "HEADGATE_POOLS": json.dumps({name: settings})},
    }


def _modelled(pool: Pool) -> dict[str, Any]:
    return {
        "engine": ENGINE,
        "model": pool.model_name or None,
        "workers": min(WORKERS_MAX, max(1, pool.count.min)),
        "slots": min(WORKER_SLOTS_MAX, pool.slots),
        "batch": min(WORKER_BATCH_MAX, pool.batch),
    }


def _forwarding(pool: Pool, file: Path) -> dict[str, Any]:
    """Return the options of a worker before the pool's server. Raises ConfigurationError for several servers."""
    if len(pool.servers) > 1:
        raise ConfigurationError(f"{file} has several servers; `headgate local` has one: use a file with one server")
    (server,) = pool.servers
    return {
        "engine": "openai",
        "url": server.url,
        "model": server.model,
        "context_tokens": server.context_tokens,
        "workers": 1,
        "slots": min(WORKER_SLOTS_MAX, server.slots),
        "batch": min(WORKER_BATCH_MAX, server.batch),
    }
