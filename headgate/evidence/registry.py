"""Every experiment, in the order of docs/evidence.md. A module enters its experiments when it is imported."""

from __future__ import annotations

from importlib import import_module

from headgate.evidence.document import EXPERIMENTS as EXPERIMENTS

_MODULES = (
    "vtc.measured",
    "vtc.sharing",
    "vtc.tables",
    "vtc.clients",
    "vtc.ablation",
    "vtc.theorems",
    "bwfq.paper",
    "bwfq.cares",
    "fairserve",
    "fairserve_service",
    "qlm.scenes",
    "qlm.waits",
    "qlm.models",
    "qlm.tenants",
    "qlm.robustness",
    "qlm.planning_cost",
    "qlm.unseen",
    "qlm.worst_off",
    "preemption.mixed",
    "preemption.costs",
    "preemption.starvation",
    "preemption.reserve",
    "preemption.limits",
    "rivals.chapter",
)

for _module in _MODULES:
    import_module(f"headgate.evidence.{_module}")
