"""Creates, finds and cancels batches. The runner (run.py) does the work.

The lines of a batch have a deferred SLO class of the pool that serves the line's model. Where no pool has one for the
tenant, no batch is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dispatcher.fields.kinds import Reading, read_fields
from dispatcher.fields.tables import BATCH_TABLE
from dispatcher.model.batches import CANCELLED, CANCELLING, INPUT, VALIDATING, Batch, UnknownBatch, UnknownFile
from dispatcher.model.errors import InvalidRequest, Refused
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.files import file_store, new_id
from dispatcher.operations.pools import Pool
from dispatcher.operations.store_patience import in_time
from dispatcher.policies.planning.slo import SloClass

OPEN_MAX = 50
"""The most batches of one tenant that wait or run."""
HOUR_S = 3600.0
_IN_LAMBDA = (
    "This service runs no batches, because its front is in Lambda, which runs nothing between requests. Send the "
    "requests with lambda.invoke and InvocationType Event, or ask the operator for `front: fargate`."
)


async def create(context: Context, tenant: Tenant, body: Mapping[str, Any]) -> Batch:
    """Create a batch from the body of POST /v1/batches. Raises InvalidRequest, UnknownFile, Refused.

    A front in Lambda refuses it, because no process beside it would run the batch.
    """
    file_store(context)
    if context.settings.front == "lambda":
        raise InvalidRequest(_IN_LAMBDA, None, "batches_unavailable")
    fields = read_fields(body, BATCH_TABLE, "", Reading())
    check_deferred(context, tenant)
    await _check_input(context, tenant.identity, fields["input_file_id"])
    if sum(each.is_open for each in await in_time(context.store.batches(tenant.identity))) >= OPEN_MAX:
        raise Refused(f"You have {OPEN_MAX} batches that have not ended; that is the most.", "batches", 60.0)
    now = context.clock.now()
    expires_at = now + HOUR_S * int(fields["completion_window"].removesuffix("h"))
    batch = Batch(
        id=new_id(context, "batch_"),
        tenant=tenant.identity,
        pool=context.batch_queue,
        endpoint=fields["endpoint"],
        input_file_id=fields["input_file_id"],
        window=fields["completion_window"],
        created_at=now,
        expires_at=expires_at,
        forgotten_at=expires_at + context.settings.files_kept_s,
        metadata=fields.get("metadata", {}),
    )
    await in_time(context.store.create_batch(batch))
    return batch


async def batch_of(context: Context, tenant: str, batch_id: str) -> Batch:
    """Return the tenant's batch. Raises UnknownBatch, InvalidRequest if the service has no batch API."""
    file_store(context)
    found = await in_time(context.store.batch(tenant, batch_id))
    if found is None:
        raise UnknownBatch()
    return found


async def cancel(context: Context, tenant: str, batch_id: str) -> Batch:
    """Cancel the batch: lines that no worker runs yet are given up, the others end. A batch that waits ends at once.

    Raises UnknownBatch, InvalidRequest if the batch has ended.
    """
    while True:
        batch = await batch_of(context, tenant, batch_id)
        if batch.status == CANCELLING:
            return batch
        if not batch.is_open:
            raise InvalidRequest(f"The batch has ended: it is {batch.status}.", None, "batch_ended")
        now = context.clock.now()
        status = CANCELLED if batch.status == VALIDATING else CANCELLING
        times = {**batch.times, CANCELLING: now, **({CANCELLED: now} if status == CANCELLED else {})}
        changed = replace(batch, version=batch.version + 1, status=status, times=times)
        if await in_time(context.store.replace_batch(changed, batch.version)):
            return changed


async def _check_input(context: Context, tenant: str, file_id: str) -> None:
    record = await in_time(context.store.file(tenant, file_id))
    if record is None:
        raise UnknownFile("No file has the id in `input_file_id`.")
    if record.purpose != INPUT:
        raise InvalidRequest(f"The file has the purpose {record.purpose}; {INPUT} is required.", "input_file_id")


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
    classes = pool.slo_classes
    if classes is None:
        return None
    own = tenant.slo_class if tenant.slo_class in classes else classes.usual.name
    return next((each for each in classes.allowed(own) if each.is_deferred), None)


def _unavailable(has: str) -> InvalidRequest:
    message = f"{has} no deferred SLO class, so it runs no batches: its operator sets HEADGATE_SLO_CLASSES."
    return InvalidRequest(message, None, "batches_unavailable")
