"""The SLO class of a batch's lines: a deferred one of the pool that serves the line's model."""

from __future__ import annotations

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool
from dispatcher.policies.planning.slo import SloClass


def check_deferred(context: Context, tenant: Tenant) -> None:
    """Raise InvalidRequest if the tenant's requests may have a deferred class in no pool."""
    if all(_find_deferred_class(pool, tenant) is None for pool in context.pools):
        raise _unavailable("This service has")


def deferred_class(pool: Pool, tenant: Tenant) -> SloClass:
    """Return the strictest deferred class that the tenant's requests may have in the pool.

    Raises InvalidRequest if there is none.
    """
    found = _find_deferred_class(pool, tenant)
    if found is None:
        raise _unavailable("The pool of this model has")
    return found


def _find_deferred_class(pool: Pool, tenant: Tenant) -> SloClass | None:
    classes = pool.settings.slo_classes
    if classes is None:
        return None
    own = tenant.slo_class if tenant.slo_class in classes else classes.usual.name
    return next((each for each in classes.allowed(own) if each.is_deferred), None)


def _unavailable(has: str) -> InvalidRequest:
    message = f"{has} no deferred SLO class, so it runs no batches: its operator sets HEADGATE_SLO_CLASSES."
    return InvalidRequest(message, None, "batches_unavailable")
