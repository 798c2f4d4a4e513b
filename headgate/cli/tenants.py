"""`headgate tenants`: against AWS, or the local stack with AWS_ENDPOINT_URL set to it."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.bootstrap import RealClock, RealIds, make_store
from dispatcher.config import load_config
from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.operations import tenants as operations
from dispatcher.policies.tiers import TENANT_TIERS, Tier
from dispatcher.ports import Store, Tenant

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Tenants and their keys.")
T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help="The tenant's name.")]
Weight = Annotated[float | None, typer.Option(help="Share of what nobody is owed; 1 by default.")]
Rate = Annotated[float | None, typer.Option(help="Guaranteed service units a second; 0: none.")]
Burst = Annotated[float | None, typer.Option(help="How far it may run ahead of its rate, in service units.")]
TierName = Annotated[str | None, typer.Option(help="premium, standard or background.")]
QueueMax = Annotated[int | None, typer.Option(help="Most requests that may wait.")]
MaxTokens = Annotated[int | None, typer.Option(help="Highest max_tokens that it may ask for.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="A model that it may use; all where none is named.")]


@app.command()
def create(
    name: Name,
    weight: Weight = None,
    rate: Rate = None,
    burst: Burst = None,
    tier: TierName = None,
    queue_max: QueueMax = None,
    max_tokens: MaxTokens = None,
    model: Models = None,
    json: Json = False,
) -> None:
    """Create a tenant and print its key: it is shown this once."""

    async def run(store: Store) -> tuple[str, operations.Booking]:
        tenant = _changed(Tenant(name, name), weight, rate, burst, tier, queue_max, max_tokens, model)
        key = await operations.create(store, RealIds(), RealClock(), tenant)
        return key, await operations.booking(store, RealClock(), tenant.pool)

    key, booked = _with_store(run)
    _say({"tenant": name, "api_key": key}, json, f"{name}: {key}")
    _warn(booked)


@app.command("list")
def list_(json: Json = False) -> None:
    """All tenants."""
    tenants = _with_store(lambda store: store.list_tenants())
    if json:
        _say({"tenants": [_told(tenant) for tenant in tenants]}, True, "")
        return
    table = Table()
    for heading in ("tenant", "tier", "weight", "rate/s", "burst", "queue max", "max_tokens", "models"):
        table.add_column(heading)
    for tenant in tenants:
        owed = tenant.share
        cells = [tenant.name, tenant.tier.value, f"{owed.weight:g}", f"{owed.rate_per_s:g}", f"{owed.burst:g}"]
        limits = [str(tenant.queue_items_max), str(tenant.max_tokens_max)]
        table.add_row(*cells, *limits, ", ".join(tenant.models or ("all",)))
    Console().print(table)


@app.command()
def show(name: Name, json: Json = False) -> None:
    """One tenant, with the prefixes of its keys."""

    async def run(store: Store) -> dict[str, Any]:
        tenant = await operations.existing(store, name)
        return {**_told(tenant), "keys": [key.prefix for key in await store.keys_of(name)]}

    told = _with_store(run)
    lines = {**told, **told["share"], "models": ", ".join(told["models"] or ("all",)), "keys": ", ".join(told["keys"])}
    del lines["share"]
    _say(told, json, "\n".join(f"{field}: {value}" for field, value in lines.items()))


@app.command("set")
def set_(
    name: Name,
    weight: Weight = None,
    rate: Rate = None,
    burst: Burst = None,
    tier: TierName = None,
    queue_max: QueueMax = None,
    max_tokens: MaxTokens = None,
    model: Models = None,
    json: Json = False,
) -> None:
    """Change what is given; in force everywhere within a minute."""

    async def run(store: Store) -> tuple[Tenant, operations.Booking]:
        tenant = await operations.change(
            store, name, lambda old: _changed(old, weight, rate, burst, tier, queue_max, max_tokens, model)
        )
        return tenant, await operations.booking(store, RealClock(), tenant.pool)

    tenant, booked = _with_store(run)
    _say(_told(tenant), json, f"{name}: changed")
    _warn(booked)


@app.command("rotate-key")
def rotate_key(name: Name, json: Json = False) -> None:
    """Print a new key; the newest old one stays valid beside it."""
    key = _with_store(lambda store: operations.rotate_key(store, RealIds(), RealClock(), name))
    _say({"tenant": name, "api_key": key}, json, f"{name}: {key}")


@app.command()
def delete(name: Name, json: Json = False) -> None:
    """Delete a tenant; its keys are refused everywhere within a minute."""
    _with_store(lambda store: operations.delete(store, name))
    _say({"tenant": name, "deleted": True}, json, f"{name}: deleted")


def _changed(
    tenant: Tenant,
    weight: float | None,
    rate: float | None,
    burst: float | None,
    tier: str | None,
    queue_max: int | None,
    max_tokens: int | None,
    models: list[str] | None,
) -> Tenant:
    """The tenant with what was given. Raises ConfigurationError."""
    if tier is not None and tier not in TENANT_TIERS:
        raise ConfigurationError(f"--tier: there are {', '.join(TENANT_TIERS)}, not {tier!r}")
    if (queue_max or 0) < 0 or (max_tokens or 0) < 0:
        raise ConfigurationError("--queue-max and --max-tokens are zero or more")
    owed = tenant.share
    share = operations.share(
        owed.weight if weight is None else weight,
        owed.rate_per_s if rate is None else rate,
        owed.burst if burst is None else burst,
    )
    return replace(
        tenant,
        share=share,
        tier=tenant.tier if tier is None else Tier(tier),
        queue_items_max=tenant.queue_items_max if queue_max is None else queue_max,
        max_tokens_max=tenant.max_tokens_max if max_tokens is None else max_tokens,
        models=tuple(models) if models else tenant.models,
    )


def _with_store(run: Callable[[Store], Awaitable[T]]) -> T:
    from botocore.exceptions import BotoCoreError

    config = load_config()
    try:
        store = make_store(config)
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise ConfigurationError(f"AWS's variables do not say where the table is: {error}") from None

    async def work() -> T:
        return await run(store)

    try:
        return asyncio.run(work())
    except StoreUnavailable as error:
        raise ConfigurationError(f"table {config.table!r}: {error}") from None


def _told(tenant: Tenant) -> dict[str, Any]:
    return {**asdict(tenant), "tier": tenant.tier.value}


def _say(told: dict[str, Any], json: bool, text: str) -> None:
    sys.stdout.write((json_module.dumps(told) if json else text) + "\n")


def _warn(booked: operations.Booking) -> None:
    if booked.is_overbooked:
        sys.stderr.write(
            f"headgate: overbooked: {booked.promised_per_s:.0f} service units a second are promised, "
            f"{booked.capacity_per_s:.0f} were measured; guarantees are scaled down while all are active\n"
        )
