"""What `headgate serve` and `headgate local` share: the options of a fleet's file, the addresses shown, and the end.

The addresses are a table for people, or one line of JSON. A command runs in the foreground until SIGINT or SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.planning.slo import SloClasses
from headgate.machine.options import WORKERS_MAX, ServedModel, SwappingWorker, WorkerFailure

if TYPE_CHECKING:
    from headgate.simulator.fleet.spec import FleetSpec, Loadable

_SLOTS_MAX = 64
"""A worker of this machine takes at most so many requests at a time, whatever its profile allows."""
_SIMULATED_ONLY = (
    "prefill_curve", "warm_up_s", "repeats_failed_attempts", "tenant_tokens", "prefix_cache_tokens", "max_loras",
)  # fmt: skip


def fleet_values(options: Mapping[str, Any], *, plays_failures: bool = False) -> dict[str, Any]:
    """Return the options of a fleet's file (headgate/simulator/fleet/spec.py); none without a file.

    A load takes as long as it takes in the file, also if planners believe otherwise there. The modelled engine has the
    step times and the memory of the profiles; of another engine only the slots hold. Raises ConfigurationError.
    """
    fleet, engine, model = options["fleet"], options["engine"], options["model"]
    if fleet is None:
        return {}
    from gpu_worker.service.swapper import DRAIN_S
    from headgate.simulator.fleet.spec import read_fleet

    if engine == "openai" or model is not None:
        raise ConfigurationError("--fleet has the models of each worker: leave out --model, and use another --engine")
    spec = read_fleet(fleet)
    if len(spec.workers) > WORKERS_MAX:
        raise ConfigurationError(f"{fleet} has {len(spec.workers)} workers: one machine runs at most {WORKERS_MAX}")
    if spec.failures and not plays_failures:
        said = "only headgate simulate and headgate serve play them"
        sys.stderr.write(f"note: no worker fails here by the file's `failures`: {said}\n")
    if spec.longest_drain_s != DRAIN_S:
        sys.stderr.write(
            f"note: a swap waits here for {DRAIN_S:g} s at most, whatever drain_s and actual_drain_s say\n"
        )
    usual = SloClasses(spec.classes).usual.name
    if spec.default_class != usual:
        sys.stderr.write(f"note: a request without a class has {usual} here, whatever default_class says\n")
    if engine == "modelled" and (unknown := _unknown_fields(spec)):
        sys.stderr.write(
            f"note: the modelled engine has no {', '.join(unknown)}: here these fields of the profiles do not count\n"
        )
    workers = []
    for worker in spec.workers:
        names = sorted(worker.models, key=lambda name: name != worker.loaded)
        slots = min(_SLOTS_MAX, *(model.slots for model in worker.models.values()))
        workers.append(SwappingWorker(tuple(_describe_model(name, worker.models[name]) for name in names), slots))
    classes = {each.name: {"first_token_s": each.first_token_s, "deferred": each.is_deferred} for each in spec.classes}
    names = [worker.name for worker in spec.workers]
    failures = [WorkerFailure(names.index(each.worker), each.at_s, each.for_s) for each in spec.failures]
    return {
        "fleet": fleet, "swapping": workers, "workers": len(workers), "failures": failures if plays_failures else (),
        "slo_classes": json.dumps(classes),
    }  # fmt: skip


def _describe_model(name: str, able: Loadable) -> ServedModel:
    from gpu_worker.service.modelled_profile import ModelledProfile

    known = {field: getattr(able.profile, field) for field in ModelledProfile.model_fields}
    return ServedModel(name, able.load_s, ModelledProfile.model_validate(known).model_dump_json(exclude_defaults=True))


def _unknown_fields(spec: FleetSpec) -> list[str]:
    """Return the fields of the profiles that change what the simulator does and that the modelled engine lacks."""
    profiles = [able.profile for worker in spec.workers for able in worker.models.values()]
    fields = type(profiles[0]).model_fields
    return [name for name in _SIMULATED_ONLY if any(getattr(each, name) != fields[name].default for each in profiles)]


def print_json_line(addresses: BaseModel) -> None:
    sys.stdout.write(json.dumps(addresses.model_dump(mode="json")) + "\n")  # in ASCII, whatever a name has
    sys.stdout.flush()


def print_address_table(title: str, rows: Sequence[tuple[str, str]], next_steps: str) -> None:
    """Print a line for each row (name, value), and below them the commands to call next.

    No line is broken and none has a border, so that a key can be copied from a terminal of any width.
    """
    width = max(len(name) for name, _ in rows)
    lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows), next_steps]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def interrupted() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set. From now on they do not end the process."""
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
    return over


async def either(work: asyncio.Future[Any], over: asyncio.Event) -> None:
    """Wait until the work is done or a signal arrives. After a signal, cancel the work."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(over.wait())
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if over.is_set() and not work.done():
        work.cancel()
        await asyncio.wait({work})
