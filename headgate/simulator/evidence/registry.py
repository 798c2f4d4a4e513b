"""Every experiment, in the order of docs/evidence.md: a module enters its own when it is imported here."""

from __future__ import annotations

from importlib import import_module

from headgate.simulator.evidence.sections import EXPERIMENTS as EXPERIMENTS

MODULES = (
    "vtc_tables",
    "vtc_sharing",
    "vtc_isolation",
    "vtc_response",
    "vtc_ablation",
    "vtc_profiled",
    "theorems",
    "bwfq_paper",
    "bwfq_scale",
    "bwfq_cares",
    "fairserve",
)

for _module in MODULES:
    import_module(f"headgate.simulator.evidence.{_module}")
