"""Usage per tenant, application and hour: what the log says was served, exact to the token. Pure."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Totals of the calls that ended within one hour. `service` in service units."""

    tenant: str
    app: str
    hour: int
    """Unix seconds // 3600."""
    requests: int
    input_tokens: int
    output_tokens: int
    service: float
    position: int
    """The totals contain every entry below this position of the shard's log."""
