"""Creates tenants at the start: those of the tenants' file that do not exist yet, or a default one if there is none."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.bootstrap import RealClock, RealIds
from dispatcher.model.tenants import Tenant
from dispatcher.operations.tenants import StoreAdmin
from dispatcher.ports import Store

DEFAULT_TENANT = "default"


async def create_missing(store: Store, wanted: Sequence[Tenant]) -> dict[str, str]:
    """Create the tenants that do not exist yet, and return the key of each, by name. Raises ConfigurationError.

    A key is shown only once. Existing tenants stay unchanged; `headgate tenants set` changes them.
    """
    existing = {tenant.name for tenant in await store.list_tenants()}
    if not existing and not wanted:
        wanted = [Tenant(DEFAULT_TENANT)]
    missing = [tenant for tenant in wanted if tenant.name not in existing]
    admin = StoreAdmin(store, RealIds(), RealClock(), lambda: "headgate serve")
    return {tenant.name: await admin.create(tenant) for tenant in missing}
