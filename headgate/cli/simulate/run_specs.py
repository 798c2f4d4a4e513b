"""Makes the runs of `headgate simulate` from its options, and checks all of them before the first begins."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.orders.registry import DEFAULT_ORDER, ORDERS
from gpu_worker.policies.tiers import TierSettings
from headgate.cli.simulate.options import SimulateOptions
from headgate.cli.simulate.parsing import policy_names, some, tenant_weights
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.gates.file import read_gate
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.report.drawing import check_installed
from headgate.simulator.run import RunSpec
from headgate.workloads.sources import Workload, open_workload

VTC_WORKLOADS = frozenset({"real", "overload", "overload-multi", "poisson_short_long", "proportional"})
"""The workloads of the VTC artifact. The paper computes their service difference over 600 s, although the last request
arrives a little earlier or later (one of them ends at 360 s)."""
VTC_HORIZON_S = 600.0
VTC_LAST_ARRIVAL_S = (300.0, 620.0)
JITTER_MAX = 1.0


def run_specs(options: SimulateOptions) -> list[RunSpec]:
    """Make all seeds of the first policy, all seeds of the next, and so on.

    Raises ConfigurationError, with one sentence, for the first option that is wrong.
    """
    policies = policy_names(options.policy, options.wsc_weights, options.service)
    profile = load_profile(options.engine)
    _check_numbers(options)
    gate = _gate(options)
    if options.report is not None:
        _check_writable(options.report, "--report")
        check_installed()
    workload = open_workload(options.trace)
    first = RunSpec(
        workload,
        policies[0],
        profile,
        service=options.service,
        weights=tenant_weights(options.weights, workload),
        jitter=options.jitter,
        horizon_s=_horizon_s(options, workload),
        timing=options.timing,
        tiers=_tiers(options),
        gate=gate,
    )
    with_timeline = options.seed if options.report is not None else None
    return [
        replace(first, policy=policy, seed=seed, timeline=seed == with_timeline)
        for policy in policies
        for seed in range(options.seed, options.seed + options.seeds)
    ]


def _check_numbers(options: SimulateOptions) -> None:
    if not 0 <= options.jitter <= JITTER_MAX:
        raise ConfigurationError(f"--jitter must be between 0 and {JITTER_MAX:g}, not {options.jitter:g}")
    if options.horizon is not None and not 0 < options.horizon < math.inf:
        raise ConfigurationError(f"--horizon must be a positive number of seconds, not {options.horizon:g}")


def _check_writable(path: Path, option: str) -> None:
    if path.is_dir():
        raise ConfigurationError(f"{option}: {path} is a folder")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{option}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{option}: {path} cannot be written")


def _gate(options: SimulateOptions) -> GateSpec | None:
    if options.gate not in ("on", "off"):
        raise ConfigurationError(f"--gate must be on or off, not {options.gate[:40]!r}")
    order = options.order or DEFAULT_ORDER
    if order not in ORDERS:
        raise ConfigurationError(f"unknown order {order[:40]!r}; there are {', '.join(sorted(ORDERS))}")
    if options.gate == "on":
        if options.tenants is None:
            raise ConfigurationError("--gate on needs --tenants FILE.yaml, with its slots and its tenants' shares")
        return read_gate(options.tenants, order=order)
    if options.order is not None or options.tenants is not None:
        raise ConfigurationError("--order and --tenants need --gate on")
    return None


def _tiers(options: SimulateOptions) -> TierSettings | None:
    if options.preemption not in ("on", "off", None):
        raise ConfigurationError(f"--preemption must be on or off, not {options.preemption[:40]!r}")
    if options.preemption is None and options.premium_reserve is not None:
        raise ConfigurationError("--premium-reserve needs the paged engine: add --preemption on or off")
    if options.preemption != "on" and options.lead_max is not None:
        raise ConfigurationError("--lead-max needs --preemption on")
    if options.preemption is None:
        return None
    try:
        return TierSettings(
            preemption=options.preemption == "on",
            premium_reserve=options.premium_reserve or 0.0,
            lead_max=math.inf if options.lead_max is None else options.lead_max,
        )
    except ValueError as error:
        raise ConfigurationError(f"--preemption: {error}") from None


def _horizon_s(options: SimulateOptions, workload: Workload) -> float | None:
    if options.horizon is not None:
        return options.horizon
    shortest_s, longest_s = VTC_LAST_ARRIVAL_S
    is_vtc = workload.name.partition(".")[0] in VTC_WORKLOADS and shortest_s <= workload.last_arrival_s <= longest_s
    return VTC_HORIZON_S if is_vtc else None


def notes_of(options: SimulateOptions, spec: RunSpec) -> list[str]:
    """Return notes about what the user may have overlooked, one sentence each. `spec`: any of the runs."""
    notes = list(spec.workload.notes)
    if options.seeds > 1 and not options.jitter:
        notes.append("Without --jitter, seeds differ only for policies that draw random numbers (vtc-noisy).")
    return notes if spec.gate is None else notes + _gate_notes(spec.gate, spec.workload, options.tenants)


def _gate_notes(gate: GateSpec, workload: Workload, file: Path | None) -> list[str]:
    notes = []
    if unnamed := [name for name in workload.tenants if name not in gate.tenants]:
        notes.append(f"Not in {file}, so with weight 1 and without a guarantee: {some(unnamed)}.")
    if absent := [name for name in gate.tenants if name not in workload.tenants]:
        notes.append(f"In {file} but not in the workload: {some(absent)}.")
    if gate.order == "ratio" and not any(tenant.share.rate_per_s for tenant in gate.tenants.values()):
        notes.append(
            "The order ratio, as published, dispatches no tenant without credit, even to an idle fleet: give tenants a "
            "rate_per_s."
        )
    return notes
