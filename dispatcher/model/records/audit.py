"""The record of one change of tenants or keys: what an administrator did, and when. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple


class AuditRecord(NamedTuple):
    """A change that was made. It is written with the change, both or neither, and never changed or deleted."""

    id: str
    """Random. It orders records of the same millisecond."""
    at: float
    """Unix seconds."""
    actor: str
    """Who made the change: the ARN of an AWS identity, or `local:USER@HOST` without AWS."""
    action: str
    """`tenant.create`, `tenant.change`, `tenant.delete`, `key.create` or `key.delete`."""
    tenant: str
    before: Mapping[str, Any] | None
    """The fields before the change; None for what is new. Of a key never more than its first characters."""
    after: Mapping[str, Any] | None
    """The fields after the change; None for what was deleted."""

    @property
    def month(self) -> str:
        """The month in UTC, such as "2026-11"."""
        return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m")
