"""`headgate tenants audit`: the changes of tenants and keys, and the identities that made them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.bootstrap import RealClock
from dispatcher.model.audit import AuditRecord
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tenants import is_named
from dispatcher.operations.tenant_settings import difference
from headgate.cli.admins import with_admin
from headgate.cli.gate_store import Data
from headgate.cli.tenant_keys import Json, shown_as

OnlyName = Annotated[str | None, typer.Argument(help="Only changes of tenants with this name, or of this identity.")]
Month = Annotated[str | None, typer.Option(help="The month in UTC, such as 2026-11; default: this one.")]


def audit(name: OnlyName = None, month: Month = None, data: Data = None, json: Json = False) -> None:
    """List the changes of tenants and keys in a month: the time, the identity, and what was before and after."""
    chosen = _parse_month(month) if month else datetime.fromtimestamp(RealClock().now(), UTC).strftime("%Y-%m")
    records = with_admin(data, lambda admin: admin.audit(chosen))
    found = [each for each in records if name is None or is_named(each.tenant, name)]
    if json:
        shown_as({"month": chosen, "records": [record._asdict() for record in found]}, True, "")
        return
    Console().print(_table(found))


def changes_of(record: AuditRecord) -> str:
    """Return what changed, one setting a line."""
    if record.before is None or record.after is None:
        fields = record.after or record.before or {}
        return "\n".join(f"{field}: {_value_text(field, value)}" for field, value in fields.items() if value)
    differing = difference(record.before, record.after).items()
    return "\n".join(f"{field}: {before} → {after}" for field, (before, after) in differing)


def _value_text(field: str, value: Any) -> str:
    if field == "expires_at":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")
    return ", ".join(value) if isinstance(value, list) else str(value)


def _table(records: Sequence[AuditRecord]) -> Table:
    table = Table()
    for heading in ("time (UTC)", "by", "what", "tenant", "change"):
        table.add_column(heading, overflow="fold")
    for record in records:
        at = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(at, record.actor, record.action, record.tenant, changes_of(record))
    return table


def _parse_month(month: str) -> str:
    """Return the month. Raises ConfigurationError."""
    try:
        return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).strftime("%Y-%m")
    except ValueError:
        raise ConfigurationError(f"--month: {month[:20]!r} is no month; use for example 2026-11") from None
