"""What `headgate simulate` was asked, found right before anything runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.orders.registry import DEFAULT_ORDER, ORDERS
from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers.settings import TierSettings
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.gates.file import read_gate
from headgate.simulator.gates.run import GatedSpec
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.report.drawing import check_installed
from headgate.simulator.run import RunSpec
from headgate.workloads.sources import Workload, open_workload

VTC_WORKLOADS = frozenset({"real", "overload", "overload-multi", "poisson_short_long", "proportional"})
"""Of the VTC artifact: their service difference is the paper's, over 600 s, though the last request comes a little
before or after (360 s of one of them were enough for the paper)."""
VTC_HORIZON_S = 600.0
VTC_LAST_ARRIVAL_S = (300.0, 620.0)
JITTER_MAX = 1.0
NAMED_MAX = 5
"""Most tenants that a note names."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """As they were given."""

    traces: tuple[str, ...]
    policies: str
    engine: str
    weights: str
    service: str
    wsc_weights: str
    seeds: int
    seed: int
    jitter: float
    horizon_s: float | None
    gate: str
    order: str | None
    tenants: Path | None
    report: Path | None
    timing: bool
    preemption: str | None = None
    premium_reserve: float | None = None
    lead_max: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """`specs`: all seeds of the first policy, all of the next, …; `gate_told`: what the JSON says of the gate."""

    specs: tuple[GatedSpec, ...]
    notes: tuple[str, ...]
    gate_told: dict[str, Any]


def checked(options: SimulateOptions) -> Asked:
    """Raises ConfigurationError: one sentence, before anything runs."""
    policies = _policies(options)
    profile = load_profile(options.engine)
    if not 0 <= options.jitter <= JITTER_MAX:
        raise ConfigurationError(f"--jitter is between 0 and {JITTER_MAX:g}, not {options.jitter:g}")
    if options.horizon_s is not None and not 0 < options.horizon_s < math.inf:
        raise ConfigurationError(f"--horizon is a positive number of seconds, not {options.horizon_s:g}")
    gate = _gate(options)
    if options.report is not None:
        writable(options.report, "--report")
        check_installed()
    workload = open_workload(options.traces)
    weights = _weights(options.weights, workload)
    run = RunSpec(
        workload,
        policies[0],
        profile,
        service=options.service,
        weights=weights,
        jitter=options.jitter,
        horizon_s=_horizon_s(options, workload),
        timing=options.timing,
        tiers=_tiers(options),
    )
    specs = tuple(
        GatedSpec(
            replace(run, policy=policy, seed=seed, timeline=options.report is not None and seed == options.seed), gate
        )
        for policy in policies
        for seed in range(options.seed, options.seed + options.seeds)
    )
    notes = (*workload.notes, *_notes(options, gate, workload))
    told = {} if gate is None else {"gate": {"order": gate.order, "slots": gate.slots}}
    return Asked(specs, notes, told)


def writable(path: Path, option: str) -> None:
    """Raises ConfigurationError where a file could not be written there."""
    if path.is_dir():
        raise ConfigurationError(f"{option}: {path} is a folder")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{option}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{option}: {path} cannot be written")


def _policies(options: SimulateOptions) -> list[str]:
    names = _with_weights(_split(options.policies), options.wsc_weights)
    if not names:
        raise ConfigurationError("--policy: name at least one")
    try:
        service = service_function(options.service)
        for name in names:
            make_policy(name, service)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return names


def _split(text: str) -> list[str]:
    """At the commas, but for those between a policy's own numbers: `wsc:1,1,2` is one name."""
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if names and part and not part[0].isalpha():
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return list(dict.fromkeys(names))


def _weights(text: str, workload: Workload) -> dict[str, float]:
    """TENANT=1,TENANT=2; names of tenants may have commas and signs in them, so each is looked for in the workload."""
    weights: dict[str, float] = {}
    known = frozenset(workload.tenants)
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.rpartition("=")
        if not equals or not name:
            raise ConfigurationError(f"--weights: TENANT=NUMBER was expected, not {entry[:80]!r}")
        if name not in known:
            raise ConfigurationError(
                f"--weights: the workload has no tenant {name[:80]!r}; it has {_some(workload.tenants)}"
            )
        weights[name] = _number(value, "--weights", positive=True)
    return weights


def _with_weights(names: list[str], text: str) -> list[str]:
    """`wsc` with the weights that were asked for in its name."""
    if not text:
        return names
    if "wsc" not in names:
        raise ConfigurationError("--wsc-weights is for --policy wsc")
    numbers = [_number(part, "--wsc-weights") for part in text.split(",")]
    if len(numbers) != 3 or not any(numbers):
        raise ConfigurationError(f"--wsc-weights: three numbers, not all 0, were expected (1,2,1), not {text[:80]!r}")
    return [f"wsc:{','.join(f'{number:g}' for number in numbers)}" if name == "wsc" else name for name in names]


def _number(text: str, option: str, *, positive: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf or (value == 0 and not positive):
        return value
    raise ConfigurationError(
        f"{option}: {'a positive number' if positive else 'a number'} was expected, not {text[:40]!r}"
    )


def _gate(options: SimulateOptions) -> GateSpec | None:
    if options.gate not in ("on", "off"):
        raise ConfigurationError(f"--gate is on or off, not {options.gate[:40]!r}")
    order = options.order or DEFAULT_ORDER
    if order not in ORDERS:
        raise ConfigurationError(f"unknown order {order[:40]!r}; there are {', '.join(sorted(ORDERS))}")
    if options.gate == "on":
        if options.tenants is None:
            raise ConfigurationError("--gate on needs --tenants FILE.yaml: its slots, and what tenants are owed")
        return read_gate(options.tenants, order=order)
    if options.order is not None or options.tenants is not None:
        raise ConfigurationError("--order and --tenants are the gate's: add --gate on")
    return None


def _tiers(options: SimulateOptions) -> TierSettings | None:
    if options.preemption not in ("on", "off", None):
        raise ConfigurationError(f"--preemption is on or off, not {options.preemption[:40]!r}")
    if options.preemption is None and options.premium_reserve is not None:
        raise ConfigurationError("--premium-reserve is a paged engine's: add --preemption on or off")
    if options.preemption != "on" and options.lead_max is not None:
        raise ConfigurationError("--lead-max needs --preemption on")
    if options.preemption is None:
        return None
    if options.gate == "on":
        raise ConfigurationError("--preemption is not there behind --gate on yet")
    try:
        return TierSettings(
            preemption=options.preemption == "on",
            premium_reserve=options.premium_reserve or 0.0,
            lead_max=math.inf if options.lead_max is None else options.lead_max,
        )
    except ValueError as error:
        raise ConfigurationError(f"--preemption: {error}") from None


def _horizon_s(options: SimulateOptions, workload: Workload) -> float | None:
    if options.horizon_s is not None:
        return options.horizon_s
    shortest_s, longest_s = VTC_LAST_ARRIVAL_S
    is_vtc = workload.name.partition(".")[0] in VTC_WORKLOADS and shortest_s <= workload.last_arrival_s <= longest_s
    return VTC_HORIZON_S if is_vtc else None


def _notes(options: SimulateOptions, gate: GateSpec | None, workload: Workload) -> list[str]:
    notes = []
    if options.seeds > 1 and not options.jitter:
        notes.append("Without --jitter seeds differ only for policies that draw (vtc-noisy).")
    if gate is None:
        return notes
    strangers = [name for name in workload.tenants if name not in gate.tenants]
    if strangers:
        notes.append(f"Not in {options.tenants}, so of weight 1 and without a guarantee: {_some(strangers)}.")
    absent = [name for name in gate.tenants if name not in workload.tenants]
    if absent:
        notes.append(f"In {options.tenants} and not in the workload: {_some(absent)}.")
    if gate.order == "ratio" and not any(tenant.share.rate_per_s for tenant in gate.tenants.values()):
        notes.append("The order ratio, as published, serves nobody without credit at an idle fleet: name a rate_per_s.")
    return notes


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
