"""The state of one parse, and its errors. An error names the field and never repeats a value. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.model.errors import InvalidRequest

NAME_CHARS_MAX = 100
DROPPED_MAX = 32
"""The most unknown fields that one request may have in a pool that drops them."""


@dataclass(slots=True)
class Reading:
    """What one parse has found so far, across all parts of the body."""

    drop_unknown: bool = False
    """Drop unknown fields instead of refusing them."""
    dropped: list[str] = field(default_factory=list)
    """The places of the dropped unknown fields."""
    schema_nodes: int = 0
    pattern_chars: int = 0
    images: int = 0
    pixels: int = 0

    def unknown(self, at: str) -> None:
        """Note an unknown field, or refuse it. Raises InvalidRequest."""
        name = at[:NAME_CHARS_MAX]
        if not self.drop_unknown:
            raise InvalidRequest(f"Unknown parameter: `{name}`.", name, "unknown_parameter")
        if len(self.dropped) >= DROPPED_MAX:
            message = f"More than {DROPPED_MAX} unknown parameters; the first that is too many is `{name}`."
            raise InvalidRequest(message, name, "unknown_parameter")
        self.dropped.append(name)


def invalid(at: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid `{at}`: {reason}.", at, "invalid_value")


def missing(at: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: `{at}`.", at, "missing_required_parameter")


def unsupported(at: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, at, "unsupported_parameter")
