"""The protocol between gate and worker as bytes: a work order in, events out, one JSON object a line (NDJSON).

Both sides use this module. dispatcher/model/worker_protocol.py defines the messages, and this module the bounds of an
order.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import make_dataclass
from math import ulp
from typing import Annotated, Any

from msgspec import MsgspecError
from msgspec.json import Decoder, Encoder
from pydantic import (
    Discriminator,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from dispatcher.model.call import CallTerms
from dispatcher.model.requests import Endpoint
from dispatcher.model.tracing import TRACEPARENT
from dispatcher.model.worker_protocol import (
    ATTEMPT_MAX,
    CHOICE_MAX,
    Alive,
    Finished,
    Started,
    Token,
    WorkEvent,
    WorkOrder,
    WorkRefused,
)
from dispatcher.policies.bounds import Bounds, Pattern
from dispatcher.policies.tiers import Tier

BODY_BYTES_MAX = 2_000_000
"""The most bytes of an order. Twice the gate's limit of a request body, so that the gate's own fields fit too."""


class OrderRefused(Exception):
    """The body is not a valid work order. The message names the field and does not repeat its value."""


def encode_order(order: WorkOrder, cache_salt: str = "") -> bytes:
    """Return the order as JSON in UTF-8. (In ASCII it could take three times the bytes of the tenant's body.)

    `cache_salt`: instead of that of the order. An order without a trace has no such field, so that a worker of an older
    version takes it too.
    """
    terms, trace = order.terms, {"trace": order.trace} if order.trace else {}
    fields = {name: getattr(terms if name in _TERMS else order, name) for name in _ALWAYS}
    return _to_json({**fields, "cache_salt": cache_salt or order.cache_salt, **trace})


def parse_order(body: bytes) -> WorkOrder:
    """Decode an order. Raises OrderRefused for a missing field, an unknown one, or one out of bounds."""
    try:
        row = _ORDER.validate_json(body, strict=True, extra="forbid")
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, finding["loc"])) or "order"
        raise OrderRefused(f"{field}: {finding['type']}") from None
    fields = {name: getattr(row, name) for name in _BOUNDS}
    return WorkOrder(CallTerms(cost=0.0, **{name: fields.pop(name) for name in _TERMS}), **fields)


def encode_event(event: WorkEvent | Alive) -> bytes:
    """Return the event as one line of ASCII, because some readers end a line at characters that a text may contain."""
    return _EVENT.dump_json(event, ensure_ascii=True, exclude_none=True) + b"\n"


def parse_event(line: bytes) -> WorkEvent | Alive:
    """Decode a line. Fields of a newer worker are ignored. Raises ValueError if it is not an event.

    Almost all lines are tokens, which msgspec reads in a tenth of the time. What it refuses, pydantic decides.
    """
    if _IS_TOKEN in line:
        with suppress(MsgspecError, RecursionError):
            token = _TOKEN.decode(line)
            if 0 <= token.choice <= CHOICE_MAX:
                return token
    return _EVENT.validate_json(line, strict=True)


def _without_bad_wait(fields: Any, parse: ValidatorFunctionWrapHandler) -> WorkRefused:
    """Parse a refusal. An invalid `retry_after_s` counts as unknown."""
    try:
        refused: WorkRefused = parse(fields)
    except ValidationError:
        refused = parse({**fields, "retry_after_s": None})
    return refused


_Name = Annotated[str, Bounds(1, 128)]
_Label = Annotated[str, Bounds(0, 64)]
_BOUNDS: dict[str, Any] = {
    "tenant": _Name,
    "invocation": _Name,
    "attempt": Annotated[int, Bounds(1, ATTEMPT_MAX)],
    "model": Annotated[str, Bounds(1, 200)],
    "weight": Annotated[float, Bounds(ulp(0.0), 1e9)],
    "tier": Tier,
    "deadline_at": Annotated[float, Bounds(0, 1e12)],
    "endpoint": Endpoint,
    "body": dict[str, Any],
    "max_tokens": Annotated[int, Bounds(0, 10_000_000)],
    "expected_tokens": Annotated[int, Bounds(0, 10_000_000)] | None,
    "choices": Annotated[int, Bounds(1, 10_000)],
    "app": _Label,
    "stage": Annotated[int, Bounds(0, 10_000)],
    "interaction": _Label,
    "durable": bool,
    "streamed": bool,
    "deferred": bool,
    "cache_salt": _Label,
    "trace": Annotated[str, Pattern(TRACEPARENT)],
}
"""The fields of an order and of its terms, in the order of the bytes, with their types and bounds."""
_TERMS = frozenset(_BOUNDS) & frozenset(CallTerms._fields)
_ALWAYS = tuple(name for name in _BOUNDS if name not in ("cache_salt", "trace"))
_to_json = Encoder().encode
_OrderRow: type[Any] = make_dataclass(
    "_OrderRow", [*list(_BOUNDS.items())[:-1], ("trace", _BOUNDS["trace"], "")], frozen=True, slots=True
)
_ORDER: TypeAdapter[Any] = TypeAdapter(_OrderRow)
_IS_TOKEN = b'"event":"token"'
_TOKEN = Decoder(Token)
_EVENT: TypeAdapter[WorkEvent | Alive] = TypeAdapter(
    Annotated[
        Started | Token | Finished | Annotated[WorkRefused, WrapValidator(_without_bad_wait)] | Alive,
        Discriminator("event"),
    ]
)
