"""One request of a workload, and the errors in workloads.

WorkloadError            a ConfigurationError: exit code 2, one sentence that names the place
└── TraceError           a file is not a valid trace
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.model.errors import ConfigurationError


class WorkloadError(ConfigurationError):
    """A file or an argument does not describe a valid workload."""


class TraceError(WorkloadError):
    """A file is not a valid trace."""


TOKENS_MAX = 10_000_000
TENANT_CHARS_MAX = 200
PREFIX_BLOCK_TOKENS = 512
"""Tokens of a prompt for which a trace has one hash."""


def problem_of_name(name: str) -> str | None:
    """Return what is wrong with a tenant's name, as the end of a sentence; None if nothing is.

    A line end or an escape sequence would change what a terminal shows of all tenants.
    """
    if not name.strip():
        return "is empty"
    if len(name) > TENANT_CHARS_MAX:
        return f"begins a name of {len(name)} characters: at most {TENANT_CHARS_MAX} are allowed"
    if not name.isprintable():
        hidden = next(char for char in name if not char.isprintable())
        return f"has the character {hidden!a}: write a name of visible characters"
    return None


@dataclass(slots=True, unsafe_hash=True)
class Arrival:
    """One request of a workload. Nothing changes it; it is not frozen, because that makes a million of them slow.
    `system_tokens` are part of `input_tokens`. `slo_class`: a name of the fleet file.

    `hash_ids`: the hashes of the prompt's blocks of PREFIX_BLOCK_TOKENS, each of the block and all before it; the last
    block may be incomplete. `prefix_group`: the group of tenants that share cached prefixes; None: its tenant alone.
    `adapter`: the LoRA adapter of the model; it counts on an engine with places for adapters.
    """

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
    slo_class: str | None = None
    hash_ids: tuple[int, ...] = ()
    prefix_group: str | None = None
    adapter: str | None = None
