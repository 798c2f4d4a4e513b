"""Traces: the W3C traceparent, and the port through which gate and worker write spans. Pure.

A traceparent names a span and its trace: `00-<trace>-<span>-<flags>`, in lower-case hexadecimal digits (W3C Trace
Context, Recommendation of 23 November 2021, section 3.2). Of the flags only the lowest bit matters: the trace is
recorded. Here "" stands for no span. `tracestate` and baggage are not read and not passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

TRACEPARENT = "^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?$"
"""The pattern of a traceparent, or of none."""
_VALID = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def parse_traceparent(text: str | None) -> str:
    """Return `text` if it is a traceparent of version 00, otherwise "". Never raises: a bad one is as good as none."""
    return text if text is not None and _VALID.fullmatch(text) else ""


def trace_id_of(traceparent: str) -> str:
    return traceparent[3:35]


def is_recorded(traceparent: str) -> bool:
    return bool(traceparent) and bool(int(traceparent[-2:], 16) & 1)


def unrecorded(traceparent: str) -> str:
    """Return the traceparent of the same span, with the flag that its trace is not recorded."""
    return f"{traceparent[:-2]}00"


class Span(Protocol):
    @property
    def traceparent(self) -> str:
        """What the span's children name as their parent; "" if nothing is traced."""
        ...

    def event(self, name: str) -> None: ...

    def end(self, outcome: str, **counts: int) -> None:
        """End the span. Every further end does nothing."""
        ...


class Tracing(Protocol):
    """Writes spans. No name, event, outcome or attribute may hold a prompt, an answer, a key or other text of users."""

    def begin(self, name: str, client: str, attributes: Mapping[str, str | int]) -> Span:
        """Begin the first span of a request. `client`: what the client sent as its traceparent; it is not checked.

        A valid one is the parent. If it asks for a record, the process's own ratio still decides.
        """
        ...

    def span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        """Begin a span under one of headgate's own. `parent` "" or invalid: nothing is traced."""
        ...

    async def flush(self) -> None:
        """Send what has ended, within some seconds. Never raises."""
        ...


class _NoSpan:
    traceparent = ""

    def event(self, name: str) -> None:
        return None

    def end(self, outcome: str, **counts: int) -> None:
        return None


class _NoTracing:
    def begin(self, name: str, client: str, attributes: Mapping[str, str | int]) -> Span:
        return NO_SPAN

    def span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        return NO_SPAN

    async def flush(self) -> None:
        return None


NO_SPAN: Span = _NoSpan()
NO_TRACING: Tracing = _NoTracing()
"""Writes nothing: for a process without an OTLP endpoint."""
