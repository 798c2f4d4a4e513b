"""`headgate tenants` manages tenants in the table of AWS, or of the local stack that AWS_ENDPOINT_URL names."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.bootstrap import RealClock, RealIds, old_make_store
from dispatcher.config import load_config
from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.model.tenants import Tenant
from dispatcher.old_operations import tenants as operations
from dispatcher.old_ports import Store
from dispatcher.policies.tiers import TENANT_TIERS, Tier
from headgate.cli.one_object import takes

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Manage tenants and their API keys.")
T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help="The tenant's name.")]


@dataclass(frozen=True)
class Settings:
    """Arguments of create and set. None leaves a setting as it is."""

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
    json: Json = False

    def changed(self, tenant: Tenant) -> Tenant:
        """Return the tenant with these settings. Raises ConfigurationError."""
        if self.tier is not None and self.tier not in TENANT_TIERS:
            raise ConfigurationError(f"--tier: {self.tier!r} is no tier; use {', '.join(TENANT_TIERS)}")
        if (self.queue_max or 0) < 0 or (self.max_tokens or 0) < 0:
            raise ConfigurationError("--queue-max and --max-tokens must be 0 or more")
        old = tenant.share
        share = operations.share(
            old.weight if self.weight is None else self.weight,
            old.rate_per_s if self.rate is None else self.rate,
            old.burst if self.burst is None else self.burst,
        )
        return replace(
            tenant,
            share=share,
            tier=tenant.tier if self.tier is None else Tier(self.tier),
            queue_items_max=tenant.queue_items_max if self.queue_max is None else self.queue_max,
            max_tokens_max=tenant.max_tokens_max if self.max_tokens is None else self.max_tokens,
            models=tuple(self.model) if self.model else tenant.models,
        )


@app.command()
@takes(Settings)
def create(settings: Settings) -> None:
    """Create a tenant and print its API key. The key is shown only now; it cannot be read later."""
    name = settings.name

    async def run(store: Store) -> tuple[str, operations.Booking]:
        tenant = settings.changed(Tenant(name, name))
        key = await operations.create(store, RealIds(), RealClock(), tenant)
        return key, await operations.booking(store, RealClock(), tenant.pool)

    key, booked = _with_store(run)
    _print({"tenant": name, "api_key": key}, settings.json, f"{name}: {key}")
    _warn(booked)


@app.command("list")
def list_(json: Json = False) -> None:
    """List all tenants."""
    tenants = _with_store(lambda store: store.list_tenants())
    if json:
        _print({"tenants": [_as_json(tenant) for tenant in tenants]}, True, "")
        return
    table = Table()
    for heading in ("tenant", "tier", "weight", "rate/s", "burst", "queue max", "max_tokens", "models"):
        table.add_column(heading)
    for tenant in tenants:
        share = tenant.share
        cells = [tenant.name, tenant.tier.value, f"{share.weight:g}", f"{share.rate_per_s:g}", f"{share.burst:g}"]
        limits = [str(tenant.queue_items_max), str(tenant.max_tokens_max)]
        table.add_row(*cells, *limits, ", ".join(tenant.models or ("all",)))
    Console().print(table)


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show one tenant and the prefixes of its keys."""

    async def run(store: Store) -> dict[str, Any]:
        tenant = await operations.existing(store, name)
        return {**_as_json(tenant), "keys": [key.prefix for key in await store.keys_of(name)]}

    shown = _with_store(run)
    fields = {**shown, **shown["terms"], "models": ", ".join(shown["models"] or ("all",))}
    fields["keys"] = ", ".join(shown["keys"])
    del fields["terms"]
    _print(shown, json, "\n".join(f"{field}: {value}" for field, value in fields.items()))


@app.command("set")
@takes(Settings)
def set_(settings: Settings) -> None:
    """Change the given settings. They apply everywhere within a minute."""

    async def run(store: Store) -> tuple[Tenant, operations.Booking]:
        tenant = await operations.change(store, settings.name, settings.changed)
        return tenant, await operations.booking(store, RealClock(), tenant.pool)

    tenant, booked = _with_store(run)
    _print(_as_json(tenant), settings.json, f"{settings.name}: changed")
    _warn(booked)


@app.command("rotate-key")
def rotate_key(name: Name, json: Json = False) -> None:
    """Create and print a new key. The newest old key stays valid; older keys are deleted."""
    key = _with_store(lambda store: operations.rotate_key(store, RealIds(), RealClock(), name))
    _print({"tenant": name, "api_key": key}, json, f"{name}: {key}")


@app.command()
def delete(name: Name, json: Json = False) -> None:
    """Delete a tenant. Its keys are refused everywhere within a minute."""
    _with_store(lambda store: operations.delete(store, name))
    _print({"tenant": name, "deleted": True}, json, f"{name}: deleted")


def _with_store(run: Callable[[Store], Awaitable[T]]) -> T:
    """Run it against the table that the environment names. Raises ConfigurationError."""
    from botocore.exceptions import BotoCoreError

    config = load_config()
    try:
        store = old_make_store(config)
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is not a URL
        raise ConfigurationError(
            f"cannot reach the table: {error}; check AWS_DEFAULT_REGION and AWS_ENDPOINT_URL"
        ) from None

    async def work() -> T:
        return await run(store)

    try:
        return asyncio.run(work())
    except StoreUnavailable as error:
        raise ConfigurationError(f"table {config.table!r}: {error}") from None


def _as_json(tenant: Tenant) -> dict[str, Any]:
    """Return the tenant as --json prints it. The keys are public: `line` is the queue, `terms` is the share."""
    fields = asdict(tenant)
    queue, share = fields.pop("queue"), fields.pop("share")
    return {**fields, "line": queue, "terms": share, "tier": tenant.tier.value}


def _print(shown: dict[str, Any], json: bool, text: str) -> None:
    sys.stdout.write((json_module.dumps(shown) if json else text) + "\n")


def _warn(booked: operations.Booking) -> None:
    if booked.is_overbooked:
        sys.stderr.write(
            f"headgate: overbooked: the guarantees add up to {booked.promised_per_s:.0f} service units per second, "
            f"the workers serve {booked.capacity_per_s:.0f}; guarantees are scaled down while all tenants are active\n"
        )
