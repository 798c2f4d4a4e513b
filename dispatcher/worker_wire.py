"""The protocol between gate and worker as bytes: a work order in, events out, one JSON object a line (NDJSON).

Both sides use this module. dispatcher/model/worker_protocol.py defines the fields and their bounds.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    Discriminator,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused

BODY_BYTES_MAX = 2_000_000
"""The most bytes of an order. Twice the gate's limit of a request body, so that the gate's own fields fit too."""


class OrderRefused(Exception):
    """The body is not a valid work order. The message names the field and does not repeat its value."""


def encode_order(order: WorkOrder) -> bytes:
    """Return the order as JSON in UTF-8. (In ASCII it could take three times the bytes of the tenant's body.)

    An order without a trace has no such field, so that a worker of an older version takes it too.
    """
    return _ORDER.dump_json(order, exclude=None if order.trace else {"trace"})


def parse_order(body: bytes) -> WorkOrder:
    """Decode an order. Raises OrderRefused for a missing field, an unknown one, or one out of bounds."""
    try:
        return _ORDER.validate_json(body, strict=True, extra="forbid")
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, finding["loc"])) or "order"
        raise OrderRefused(f"{field}: {finding['type']}") from None


def encode_event(event: WorkEvent | Alive) -> bytes:
    """Return the event as one line of ASCII, because some readers end a line at characters that a text may contain."""
    return _EVENT.dump_json(event, ensure_ascii=True, exclude_none=True) + b"\n"


def parse_event(line: bytes) -> WorkEvent | Alive:
    """Decode a line. Fields of a newer worker are ignored. Raises ValueError if it is not an event."""
    return _EVENT.validate_json(line, strict=True)


def _without_bad_wait(fields: Any, parse: ValidatorFunctionWrapHandler) -> WorkRefused:
    """Parse a refusal. An invalid `retry_after_s` counts as unknown."""
    try:
        refused: WorkRefused = parse(fields)
    except ValidationError:
        refused = parse({**fields, "retry_after_s": None})
    return refused


_ORDER = TypeAdapter(WorkOrder)
_EVENT: TypeAdapter[WorkEvent | Alive] = TypeAdapter(
    Annotated[
        Started | Token | Finished | Annotated[WorkRefused, WrapValidator(_without_bad_wait)] | Alive,
        Discriminator("event"),
    ]
)
