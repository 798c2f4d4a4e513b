"""One request of a workload, and the errors of whoever describes workloads.

WorkloadError            a ConfigurationError: exit code 2, one sentence that names the place
└── TraceError           a CSV file is no trace that we can read
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.model.errors import ConfigurationError


class WorkloadError(ConfigurationError):
    """What was given is no workload."""


class TraceError(WorkloadError):
    """The file is no trace that we can read."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload. `system_tokens` are part of `input_tokens`."""

    arrival_s: float
    tenant: str
    input_tokens: int
    output_tokens: int
    interaction: str | None = None
    stage: int | None = None
    app: str | None = None
    model: str | None = None
    tier: str | None = None
    slo_ttft_ms: float | None = None
    system_tokens: int = 0
