"""headgate-admin: creates, changes and deletes tenants and keys, and lists what was changed.

The payload is `{"identity", "command"}` (commands.py); the answer is `{"result"}`, or `{"error"}` with one line for the
administrator. This function alone may write tenants, keys and audit records; IAM decides which callers may invoke it.
It logs commands and their callers, and no key.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.operations.administration import StoreAdmin, settings_of, with_settings
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock, RealIds, make_store
from dispatcher.processes.caller_identity import caller_of
from dispatcher.settings.config import Config, load_config
from functions.admin import commands
from functions.observability import logger


@cache
def _runner() -> asyncio.Runner:
    """The event loop of this sandbox."""
    return asyncio.Runner()


@cache
def _config() -> Config:
    return load_config()


@cache
def _store() -> Store:
    return make_store(_config())


@logger.inject_lambda_context
def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    try:
        return {"result": _runner().run(_answer(event, context.function_name))}
    except ConfigurationError as error:
        return {"error": str(error)}
    except StoreUnavailable:
        return {"error": "the table does not answer, and the change may have been made: look, and then try again"}


async def _answer(event: Any, function: str) -> dict[str, Any]:
    identity, command = commands.read(event)
    actor = await caller_of(identity.url, identity.headers, function, RealClock().now())
    _check_class(command)
    logger.info("administers", extra={"actor": actor, "do": command.do, "tenant": getattr(command, "tenant", "")})
    return await _administer(StoreAdmin(_store(), RealIds(), RealClock(), lambda: actor), command)


def _check_class(command: commands.AnyCommand) -> None:
    """Raises ConfigurationError for an SLO class that the stack does not have."""
    named = command.settings.slo_class if isinstance(command, commands.Create | commands.TenantChange) else None
    named = command.slo_class if isinstance(command, commands.RotateKey) else named
    known = _config().slo_class_names
    if named and named not in known:
        raise ConfigurationError(f"there is no SLO class {named!r}; there are: {', '.join(known) or 'none'}")


async def _administer(admin: StoreAdmin, command: commands.AnyCommand) -> dict[str, Any]:
    """Carry out one command. Raises ConfigurationError, StoreUnavailable."""
    match command:
        case commands.Create():
            tenant = with_settings(Tenant(command.tenant), command.settings.given())
            return {"api_key": await admin.create(tenant)}
        case commands.TenantChange():
            return {"tenant": _tenant_json(await admin.change(command.tenant, command.settings.given()))}
        case commands.Delete():
            return asdict(await admin.delete(command.tenant))
        case commands.RotateKey():
            key = await admin.rotate_key(command.tenant, command.slo_class, lives_s=command.lives_s)
            return {"api_key": key}
        case commands.RevokeKey():
            await admin.revoke_key(command.tenant, command.prefix)
        case commands.Show():
            tenant, keys = await admin.existing(command.tenant), await admin.keys(command.tenant)
            return {"tenant": _tenant_json(tenant), "keys": [_key_json(key) for key in keys]}
        case commands.ListAll():
            return {"tenants": [_tenant_json(tenant) for tenant in await admin.all()]}
        case commands.Audit():
            return {"records": [record._asdict() for record in await admin.audit(command.month)]}
    return {}


def _tenant_json(tenant: Tenant) -> dict[str, Any]:
    named = {"name": tenant.name, "identity": tenant.identity}
    return {**named, "version": tenant.version, "settings": settings_of(tenant)}


def _key_json(key: KeyRecord) -> dict[str, Any]:
    """Return what may be shown of a key: not its digest."""
    return {
        "prefix": key.prefix,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "slo_class": key.slo_class,
    }
