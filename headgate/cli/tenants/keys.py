"""`headgate tenants keys`, `rotate-key` and `revoke-key`: the API keys of one tenant."""

from __future__ import annotations

import json as json_module
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tenants import KeyRecord
from headgate.cli.tenants.admins import admin_function, with_admin
from headgate.cli.terminal.gate_store import Data, gate_config

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help="The tenant's name or identity.")]
SloClassName = Annotated[str | None, typer.Option(help='SLO class of the requests; "" is the usual class.')]
ExpiresIn = Annotated[str | None, typer.Option(help="Refuse the key after this time, for example 12h or 90d.")]
Prefix = Annotated[str, typer.Argument(help="The first characters of the key, as `headgate tenants keys` lists them.")]

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
LIVES_MAX_S = 10 * 366 * UNITS_S["d"]


def keys(name: Name, data: Data = None, json: Json = False) -> None:
    """List the tenant's valid keys: their first characters, and when they were created and expire."""

    found = with_admin(data, lambda admin: admin.keys(name))
    if json:
        shown_as({"tenant": name, "keys": [_as_json(key) for key in found]}, True, "")
        return
    table = Table()
    for heading in ("key", "created", "expires", "SLO class"):
        table.add_column(heading)
    for key in found:
        table.add_row(f"{key.prefix}…", _date(key.created_at), _date(key.expires_at), key.slo_class or "the tenant's")
    Console().print(table)


def rotate_key(
    name: Name, slo_class: SloClassName = None, expires_in: ExpiresIn = None, data: Data = None, json: Json = False
) -> None:
    """Create and print a new key. The newest old key stays valid; older keys are deleted.

    Requests with the key have its SLO class, if it has one, otherwise the tenant's.
    """
    lives_s = None if expires_in is None else seconds_of(expires_in)
    check_class(data, slo_class)
    key = with_admin(data, lambda admin: admin.rotate_key(name, slo_class or "", lives_s=lives_s))
    shown_as({"tenant": name, "api_key": key}, json, f"{name}: {key}")


def revoke_key(name: Name, prefix: Prefix, data: Data = None, json: Json = False) -> None:
    """Delete one key. It is refused everywhere within a minute."""
    with_admin(data, lambda admin: admin.revoke_key(name, prefix))
    shown_as({"tenant": name, "revoked": prefix}, json, f"{name}: {prefix}… is revoked")


def seconds_of(text: str) -> float:
    """Return the seconds of "30m", "12h" or "90d". Raises ConfigurationError."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([mhd])", text)
    lives_s = int(found[1]) * UNITS_S[found[2]] if found else 0.0
    if not 0 < lives_s <= LIVES_MAX_S:
        raise ConfigurationError(
            f"--expires-in: {text[:20]!r} is no time; use a number and m, h or d, up to 3660d, for example 90d"
        )
    return lives_s


def check_class(data: Path | None, name: str | None) -> None:
    """Raises ConfigurationError for a class that the configuration lacks (HEADGATE_SLO_CLASSES). An empty name is the
    usual class. headgate-admin checks the class with the configuration of its stack."""
    if not name or admin_function(data):
        return
    known = gate_config(data).slo_class_names
    if name in known:
        return
    if known:
        raise ConfigurationError(f"--slo-class: there is no class {name[:80]!r}; there are: {', '.join(known)}")
    raise ConfigurationError(
        f"--slo-class: there is no class {name[:80]!r}: no classes are configured. "
        "Set HEADGATE_SLO_CLASSES as the gate's processes have it"
    )


def shown_as(shown: dict[str, Any], json: bool, text: str) -> None:
    """Print the object with --json, otherwise the text."""
    sys.stdout.write((json_module.dumps(shown) if json else text) + "\n")


def _as_json(key: KeyRecord) -> dict[str, Any]:
    """Return what may be shown of a key, in Unix seconds."""
    return {
        "prefix": key.prefix,
        "created_at": key.created_at or None,
        "expires_at": key.expires_at,
        "slo_class": key.slo_class or None,
    }


def _date(at: float | None) -> str:
    """Return a time as people read it. A key of an older version has no creation time."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC") if at else "–"
