"""Errors of POST /v1/responses: those of the translated chat, with the places of the response's own fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dispatcher.model.errors import AnsweredError, TenantError

_HOUR_S = 3600.0
_PLACES = (
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("tool_choice.function", "tool_choice"),
    ("logprobs", "include"),
    ("messages", "input"),
)
_FUNCTION = re.compile(r"tools\.(\d+)\.function")


class UnknownResponse(TenantError):
    """No kept response of the tenant has this id."""

    def __init__(self, kept_s: float) -> None:
        super().__init__(
            f"No response with this id. {_retention_text(kept_s)}", "not_found", "id", 404, "invalid_request_error"
        )


class UnknownPreviousResponse(TenantError):
    def __init__(self, kept_s: float) -> None:
        retention = _retention_text(kept_s)
        message = f"No response with the id in `previous_response_id`. {retention} Send the conversation in `input`."
        param, code = "previous_response_id", "previous_response_not_found"
        super().__init__(message, code, param, 400, "invalid_request_error")


class UnknownItem(TenantError):
    """No kept response of the tenant has the item that `input` refers to."""

    def __init__(self, place: str, kept_s: float) -> None:
        message = f"No item with the id in `{place}`. {_retention_text(kept_s)} Send the item itself."
        super().__init__(message, "item_not_found", place, 404, "invalid_request_error")


@dataclass(slots=True)
class Places:
    """Where the fields of the translated chat come from: pairs of a place in the chat and one in the response."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    """A more exact place comes after a less exact one."""

    def add(self, chat: str, response: str) -> None:
        self.pairs.append((chat, response))

    def of(self, chat: str) -> str:
        """Return the place in the response of a place in the chat."""
        for known, named in [*reversed(self.pairs), *_PLACES]:
            if chat == known or chat.startswith(f"{known}."):
                return named if named == "previous_response_id" else named + chat[len(known) :]
        return _FUNCTION.sub(r"tools.\1", chat)


@contextmanager
def renamed(places: Places) -> Iterator[None]:
    """Give an error that passes through the places of the response's fields."""
    try:
        yield
    except AnsweredError as error:
        if error.param is not None and (named := places.of(error.param)) != error.param:
            error.message = re.sub(rf"(?<![\w.]){re.escape(error.param)}(?![\w.]\w)", named, error.message)
            error.param = named
        raise


def _retention_text(kept_s: float) -> str:
    hours = f"{kept_s / _HOUR_S:g}"
    return (
        f"Responses are kept for {hours} hours, unless `store` is false, the response is too long, or the tenant has "
        "used up its space (then the response says `store` false)."
    )
