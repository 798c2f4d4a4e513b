"""The SLO class of a request, and when its first token is due (policies/planning/slo.py)."""

from __future__ import annotations

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.policies.planning.slo import SloClass, SloClasses

FIELD = "metadata.headgate_slo_class"


def slo_class_of(classes: SloClasses | None, tenant: Tenant, request: Request) -> SloClass | None:
    """Return the class of a request; None if the pool has no classes.

    A tenant or key with a class that is not configured any more has the usual one. Raises InvalidRequest if the request
    names an unknown class, or a stricter one than that of its tenant or key.
    """
    if classes is None:
        if request.slo_class:
            raise InvalidRequest("This service has no SLO classes: send the request without one.", FIELD)
        return None
    own = tenant.slo_class if tenant.slo_class in classes else classes.usual.name
    try:
        return classes.resolve(own, request.slo_class or None)
    except ValueError as error:
        raise InvalidRequest(f"{str(error)[:1].upper()}{str(error)[1:]}.", FIELD) from None


def stored_class(classes: SloClasses | None, request: Request) -> SloClass | None:
    """Return the class of a request that was accepted earlier; None if it had none, or its class is not configured."""
    return classes.named(request.slo_class) if classes is not None and request.slo_class in classes else None


def due_at(slo_class: SloClass | None, created_at: float, deadline_at: float) -> float:
    """Return when the first token is due, in Unix seconds; 0 without a class. It is never due after the deadline."""
    return 0.0 if slo_class is None else min(slo_class.due_at(created_at), deadline_at)
