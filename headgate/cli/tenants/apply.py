"""`headgate tenants apply FILE`: make the tenants what a file says, after a look at the difference."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tenants import Tenant
from dispatcher.operations.administration import TenantAdmin, difference, settings_of, with_settings
from headgate.cli.tenants.admins import admin_function, warn_if_overbooked, with_admin
from headgate.cli.terminal.gate_store import Data, gate_config
from headgate.cli.terminal.output import Json, shown_as
from headgate.tenants_file import read_tenants

File = Annotated[Path, typer.Argument(help="YAML file of tenants, as `headgate serve --tenants` reads it.")]
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before the changes are made.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the difference and change nothing.")]


@dataclass
class TenantDifference:
    """What the file would change. `others`: tenants that the file does not name; they stay as they are."""

    created: dict[str, Tenant] = field(default_factory=dict)
    changed: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.created and not self.changed

    def lines(self) -> list[str]:
        """Return the difference for people: + a new tenant, ~ a changed one."""
        found = []
        for name, tenant in self.created.items():
            settings = ", ".join(f"{each} {value}" for each, value in settings_of(tenant).items() if value)
            found.append(f"+ {name}: {settings}")
        for name, changes in self.changed.items():
            settings = ", ".join(f"{each} {before} → {after}" for each, (before, after) in changes.items())
            found.append(f"~ {name}: {settings}")
        if self.others:
            found.append(f"  not in the file, and left as they are: {', '.join(self.others)}")
        return found


def apply(file: File, yes: _Yes = False, dry_run: _DryRun = False, data: Data = None, json: Json = False) -> None:
    """Create and change tenants until they are as in the file, and print the keys of new ones.

    The difference is printed first, and you are asked. A setting that the file leaves out gets its default. Tenants
    that the file does not name stay; `headgate tenants delete` deletes one.
    """
    classes = () if admin_function(data) else gate_config(data).slo_class_names
    wanted = {tenant.name: tenant for tenant in read_tenants(file, classes=classes).wanted()}
    found = with_admin(data, lambda admin: _compare(admin, wanted))
    text = "\n".join(found.lines()) or "no tenant is stored"
    if found.is_empty or dry_run:
        shown_as(_as_json(found, {}), json, text if not found.is_empty else f"nothing to change\n{text}".rstrip())
        return
    sys.stderr.write(text + "\n")
    if not yes and not _agrees():
        raise ConfigurationError("nothing was changed")
    keys = with_admin(data, lambda admin: _make_changes(admin, found))
    made = [*(f"{name}: {key}" for name, key in keys.items()), *(f"{name}: changed" for name in found.changed)]
    shown_as(_as_json(found, keys), json, "\n".join(made))
    warn_if_overbooked(data)


async def _compare(admin: TenantAdmin, wanted: Mapping[str, Tenant]) -> TenantDifference:
    stored = {tenant.name: tenant for tenant in await admin.all()}
    found = TenantDifference(others=[name for name in stored if name not in wanted])
    for name, tenant in wanted.items():
        if name not in stored:
            found.created[name] = tenant
        elif changes := difference(settings_of(stored[name]), settings_of(tenant)):
            found.changed[name] = changes
    return found


async def _make_changes(admin: TenantAdmin, found: TenantDifference) -> dict[str, str]:
    """Make the changes, and return the keys of new tenants. Prints those that were made if one fails."""
    keys: dict[str, str] = {}
    try:
        for name, changes in found.changed.items():
            await admin.change(name, {each: after for each, (_, after) in changes.items()})
        for name, tenant in found.created.items():
            keys[name] = await admin.create(with_settings(Tenant(name), settings_of(tenant)))
    except ConfigurationError:
        for name, key in keys.items():
            sys.stderr.write(f"{name}: {key}\n")
        raise
    return keys


def _agrees() -> bool:
    """Ask at the terminal. Raises ConfigurationError if there is none."""
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was changed: there is no terminal to ask at; give --yes")
    return typer.confirm("Make these changes?", err=True)


def _as_json(found: TenantDifference, keys: Mapping[str, str]) -> dict[str, Any]:
    changed = {
        name: {each: {"before": before, "after": after} for each, (before, after) in changes.items()}
        for name, changes in found.changed.items()
    }
    return {
        "created": {name: settings_of(tenant) for name, tenant in found.created.items()},
        "changed": changed,
        "others": found.others,
        "api_keys": dict(keys),
    }
