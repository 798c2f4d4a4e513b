"""`headgate tenants` manages tenants and their keys: in the folder of `headgate serve` (--data), on AWS, or locally.

With HEADGATE_ADMIN_FUNCTION, through that function (admins.py). `audit` lists the changes of tenants and keys, and the
identities that made them. `apply` is in apply.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.shards import shard_name, shard_of_tenant
from dispatcher.model.tenants import PREFIX_GROUP, AuditRecord, KeyRecord, Tenant, is_named
from dispatcher.monitor.follower import open_follower
from dispatcher.operations.administration import Deleted, TenantAdmin, difference, with_settings
from dispatcher.operations.directory import CACHE_S, WAITING_END_S
from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import Config
from dispatcher.stores.layout import INVOCATION_KEEP_S, USAGE_KEEP_S
from headgate.cli.tenants.admins import admin_function, warn_if_overbooked, with_admin
from headgate.cli.tenants.apply import apply
from headgate.cli.terminal.gate_store import Data, gate_config, with_store
from headgate.cli.terminal.one_object import takes
from headgate.cli.terminal.output import Json, shown_as
from headgate.monitor import tenant_json

Name = Annotated[str, typer.Argument(help="The tenant's name or identity.")]
_SloClassName = Annotated[str | None, typer.Option(help='SLO class of the requests; "" is the usual class.')]
_ExpiresIn = Annotated[str | None, typer.Option(help="Refuse the key after this time, for example 12h or 90d.")]
_Prefix = Annotated[str, typer.Argument(help="The first characters of the key, as `headgate tenants keys` lists them.")]

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_LIVES_MAX_S = 10 * 366 * _UNITS_S["d"]


def keys(name: Name, data: Data = None, json: Json = False) -> None:
    """List the tenant's valid keys: their first characters, and when they were created and expire."""

    found = with_admin(data, lambda admin: admin.keys(name))
    if json:
        shown_as({"tenant": name, "keys": [_key_json(key) for key in found]}, True, "")
        return
    table = Table()
    for heading in ("key", "created", "expires", "SLO class"):
        table.add_column(heading)
    for key in found:
        table.add_row(f"{key.prefix}…", _date(key.created_at), _date(key.expires_at), key.slo_class or "the tenant's")
    Console().print(table)


def _rotate_key(
    name: Name, slo_class: _SloClassName = None, expires_in: _ExpiresIn = None, data: Data = None, json: Json = False
) -> None:
    """Create and print a new key. The newest old key stays valid; older keys are deleted.

    Requests with the key have its SLO class, if it has one, otherwise the tenant's.
    """
    lives_s = None if expires_in is None else _seconds_of(expires_in)
    _check_class(data, slo_class)
    key = with_admin(data, lambda admin: admin.rotate_key(name, slo_class or "", lives_s=lives_s))
    shown_as({"tenant": name, "api_key": key}, json, f"{name}: {key}")


def _revoke_key(name: Name, prefix: _Prefix, data: Data = None, json: Json = False) -> None:
    """Delete one key. It is refused everywhere within a minute."""
    with_admin(data, lambda admin: admin.revoke_key(name, prefix))
    shown_as({"tenant": name, "revoked": prefix}, json, f"{name}: {prefix}… is revoked")


def _seconds_of(text: str) -> float:
    """Return the seconds of "30m", "12h" or "90d". Raises ConfigurationError."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([mhd])", text)
    lives_s = int(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < lives_s <= _LIVES_MAX_S:
        raise ConfigurationError(
            f"--expires-in: {text[:20]!r} is no time; use a number and m, h or d, up to 3660d, for example 90d"
        )
    return lives_s


def _check_class(data: Path | None, name: str | None) -> None:
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


def _key_json(key: KeyRecord) -> dict[str, Any]:
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


app = typer.Typer(add_completion=False, no_args_is_help=True, help="Manage tenants and their API keys.")

app.command()(keys)
app.command("rotate-key")(_rotate_key)
app.command("revoke-key")(_revoke_key)
app.command()(apply)
_LIVE = ("waiting", "running", "reserved", "spent", "credit", "clocks", "share", "service_per_s",
        "first_token_p50_s", "first_token_p99_s")  # fmt: skip
"""The fields of the tenant's present state that `show` prints, with the last minute's figures."""
HOUR_S, _DAY_S = 3600.0, 86_400.0
_EXPIRES = f"responses expire after HEADGATE_RESPONSES_KEPT_S (24 h), answers after {INVOCATION_KEEP_S / HOUR_S:.0f} h"

_OnlyName = Annotated[str | None, typer.Argument(help="Only changes of tenants with this name, or of this identity.")]
_Month = Annotated[str | None, typer.Option(help="The month in UTC, such as 2026-11; default: this one.")]


_PREFIX_GROUP = 'Tenants of a group share cached prefixes; "" leaves the group. Default: it shares none.'


def _check_prefix_group(name: str) -> None:
    if not re.fullmatch(PREFIX_GROUP, name):
        raise ConfigurationError(f"--prefix-group: a group has up to 64 of A-Z a-z 0-9 . _ : -, not {name[:80]!r}")


@dataclass(frozen=True)
class Settings:
    """The options of `create` and `set`. None leaves a setting unchanged."""

    name: Name
    weight: Annotated[
        float | None, typer.Option(help="Weight in sharing the capacity that no guarantee uses; default 1.")
    ] = None
    rate: Annotated[float | None, typer.Option(help="Guaranteed service units per second; 0 is no guarantee.")] = None
    burst: Annotated[float | None, typer.Option(help="Service units that may be used at once under the guarantee.")] = (
        None
    )
    tier: Annotated[str | None, typer.Option(help="premium, standard or background.")] = None
    queue_max: Annotated[int | None, typer.Option(help="Most requests that may wait in the queue.")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Highest max_tokens of a request.")] = None
    model: Annotated[
        list[str] | None, typer.Option(help="Model that the tenant may use; repeat for several; default: all.")
    ] = None
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="LoRA adapter that the tenant may use; repeat for several; an empty name: none."),
    ] = None
    slo_class: _SloClassName = None
    prefix_group: Annotated[str | None, typer.Option(help=_PREFIX_GROUP)] = None
    data: Data = None
    json: Json = False

    def given(self) -> dict[str, Any]:
        """Return the settings that were given (operations/administration.py). Raises ConfigurationError."""
        if self.tier is not None and self.tier not in TENANT_TIERS:
            raise ConfigurationError(f"--tier: {self.tier!r} is no tier; use {', '.join(TENANT_TIERS)}")
        if (self.queue_max or 0) < 0 or (self.max_tokens or 0) < 0:
            raise ConfigurationError("--queue-max and --max-tokens must be 0 or more")
        _check_class(self.data, self.slo_class)
        settings = {
            "weight": self.weight,
            "rate_per_s": self.rate,
            "burst": self.burst,
            "tier": self.tier,
            "queue_max": self.queue_max,
            "max_tokens": self.max_tokens,
            "models": self.model or None,  # the option is a list, also if it was not given
            "adapters": [name for name in self.adapter if name] if self.adapter else None,
            "slo_class": self.slo_class,
            "prefix_group": self.prefix_group,
        }
        _check_prefix_group(self.prefix_group or "")
        return {name: value for name, value in settings.items() if value is not None}


@app.command()
def audit(name: _OnlyName = None, month: _Month = None, data: Data = None, json: Json = False) -> None:
    """List the changes of tenants and keys in a month: the time, the identity, and what was before and after."""
    chosen = _parse_month(month) if month else datetime.fromtimestamp(RealClock().now(), UTC).strftime("%Y-%m")
    records = with_admin(data, lambda admin: admin.audit(chosen))
    found = [each for each in records if name is None or is_named(each.tenant, name)]
    if json:
        shown_as({"month": chosen, "records": [record._asdict() for record in found]}, True, "")
        return
    Console().print(_audit_table(found))


@app.command()
@takes(Settings)
def create(settings: Settings) -> None:
    """Create a tenant and print its API key. The key is shown only once and cannot be read later."""
    name = settings.name
    tenant = with_settings(Tenant(name), settings.given())
    key = with_admin(settings.data, lambda admin: admin.create(tenant))
    shown_as({"tenant": name, "api_key": key}, settings.json, f"{name}: {key}")
    warn_if_overbooked(settings.data)


@app.command("list")
def list_(data: Data = None, json: Json = False) -> None:
    """List all tenants."""
    tenants = with_admin(data, lambda admin: admin.all())
    if json:
        shown_as({"tenants": [_as_json(tenant) for tenant in tenants]}, True, "")
        return
    table = Table()
    headings = ("tenant", "tier", "weight", "rate/s", "burst", "queue\nmax", "max\ntokens", "SLO\nclass", "models")
    for heading in headings:
        table.add_column(heading)
    for tenant in tenants:
        share = tenant.share
        cells = [tenant.name, tenant.tier.value, f"{share.weight:g}", f"{share.rate_per_s:g}", f"{share.burst:g}"]
        limits = [str(tenant.queue_items_max), str(tenant.max_tokens_max)]
        table.add_row(*cells, *limits, tenant.slo_class or "usual", ", ".join(tenant.models or ("all",)))
    Console().print(table)


@app.command()
def show(name: Name, data: Data = None, json: Json = False) -> None:
    """Show one tenant: its configuration, the prefixes of its keys, and its clocks, credit and queue now."""

    async def run(admin: TenantAdmin) -> dict[str, Any]:
        tenant, keys = await admin.existing(name), await admin.keys(name)
        return {**_as_json(tenant), "keys": [key.prefix for key in keys]}

    shown = with_admin(data, run)
    if not admin_function(data):  # its callers may not read the log
        identity = str(shown["identity"])
        now = with_store(data, lambda store, config: _now_by_pool(store, config, identity))
        shown |= {"now": next(iter(now.values()))} if len(now) == 1 else {"pools": now}
    fields = {**shown, **shown["terms"], "models": ", ".join(shown["models"] or ("all",))}
    fields["adapters"] = ", ".join(shown["adapters"]) or "none"
    fields["keys"] = ", ".join(shown["keys"])
    fields["queue"] = fields.pop("line")
    if "now" in fields:
        fields.update(_live_fields(fields.pop("now")))
    for pool, now in fields.pop("pools", {}).items():
        fields.update({f"{field} in {pool}": value for field, value in _live_fields(now).items()})
    del fields["terms"]
    shown_as(shown, json, "\n".join(f"{field}: {value}" for field, value in fields.items()))


@app.command("set")
@takes(Settings)
def set_(settings: Settings) -> None:
    """Change the given settings. They apply everywhere within a minute."""
    given = settings.given()
    if not given:
        raise ConfigurationError(
            f"{settings.name}: nothing to change: give a setting, for example --weight 2; "
            "`headgate tenants set --help` lists them"
        )
    tenant = with_admin(settings.data, lambda admin: admin.change(settings.name, given))
    shown_as(_as_json(tenant), settings.json, f"{settings.name}: changed")
    warn_if_overbooked(settings.data)


@app.command()
def delete(name: Name, data: Data = None, json: Json = False) -> None:
    """Delete a tenant, and print what happens to its keys, its requests, its data and its usage.

    Its keys are refused everywhere within a minute, and its name can be used again: the new tenant begins empty.
    """
    deleted = with_admin(data, lambda admin: admin.delete(name))
    shown = {"tenant": name, "deleted": True, "identity": deleted.identity, "erased": deleted.is_erased}
    shown_as(shown, json, "\n".join(_lines_of(deleted, is_table=data is None)))


async def _now_by_pool(store: Store, config: Config, identity: str) -> dict[str, dict[str, Any] | None]:
    """Return the tenant's state in the log of each pool; None where it is idle."""
    return {each.pool: await _now(store, each, identity) for each in config.each_pool()}


async def _now(store: Store, config: Config, identity: str) -> dict[str, Any] | None:
    """Return the tenant's state in the log; None while it is idle."""
    shard = shard_name(config.pool, shard_of_tenant(identity, config.shards))
    follower, now = open_follower(store, config, RealClock(), shard), RealClock().now()
    await follower.catch_up()
    tenant = follower.picture(now).tenant(identity)
    return None if tenant is None else {field: value for field, value in tenant_json(tenant).items() if field in _LIVE}


def _live_fields(now: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of the tenant's state that `show` prints without --json."""
    if now is None:
        return {"now": "idle"}
    clocks = ", ".join(f"{clock:.3f}" for clock in now["clocks"])
    shown = {field: value for field, value in now.items() if value is not None}
    rounded = {field: round(value, 3) if isinstance(value, float) else value for field, value in shown.items()}
    return {**rounded, "clocks": clocks}


def _as_json(tenant: Tenant) -> dict[str, Any]:
    """Return the tenant in the form of --json. Its keys are a public interface, and stay as they were named once:
    `line` has the queue, and `terms` the share."""
    fields = asdict(tenant)
    share = fields.pop("share")
    return {"name": tenant.name, **fields, "line": tenant.identity, "terms": share, "tier": tenant.tier.value}


def _lines_of(deleted: Deleted, *, is_table: bool) -> list[str]:
    """Return what `delete` prints: what happens to the tenant's keys, requests, data and usage, and when.

    `is_table`: the tenant was deleted in DynamoDB's table, not in a folder of `headgate serve`.
    """
    waits = f"end within {WAITING_END_S:.0f} s with the error tenant_deleted (403), at no cost"
    unheld = "those that no process holds (Event invokes) end unanswered, with the next sweeps or at their turn"
    return [
        f"{deleted.identity}: deleted. The name can be used again: the new tenant begins empty",
        f"  keys: refused within {CACHE_S:.0f} s everywhere, and at once where they would read kept data",
        f"  waiting requests: {waits}; {unheld}",
        "  running requests: end whole, and are charged",
        f"  kept responses, files, batches, answers under idempotency keys: {_data_text(deleted, is_table=is_table)}",
        f"  usage: kept for {USAGE_KEEP_S / _DAY_S:.0f} days (headgate usage --tenant {deleted.identity})",
        "  audit records: never deleted",
    ]


def _data_text(deleted: Deleted, *, is_table: bool) -> str:
    if deleted.is_erased:
        return f"files and batches are deleted; {_EXPIRES}" if is_table else "deleted"
    stops = "an open batch stops within a minute, and the process that runs it deletes the files"
    return f"{stops}; otherwise files expire after HEADGATE_FILES_KEPT_S (30 days); {_EXPIRES}"


def _changes_of(record: AuditRecord) -> str:
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


def _audit_table(records: Sequence[AuditRecord]) -> Table:
    table = Table()
    for heading in ("time (UTC)", "by", "what", "tenant", "change"):
        table.add_column(heading, overflow="fold")
    for record in records:
        at = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(at, record.actor, record.action, record.tenant, _changes_of(record))
    return table


def _parse_month(month: str) -> str:
    """Return the month. Raises ConfigurationError."""
    try:
        return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).strftime("%Y-%m")
    except ValueError:
        raise ConfigurationError(f"--month: {month[:20]!r} is no month; use for example 2026-11") from None
