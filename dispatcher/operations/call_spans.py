"""The spans of one call in the process that follows it: its waits and its attempts (docs/operators.md, One trace)."""

from __future__ import annotations

from dispatcher.model.commands import Offer
from dispatcher.model.tracing import NO_SPAN, Span, Tracing
from dispatcher.operations.calls import Call, span_attributes


class CallSpans:
    """One span is open at a time: `waited` until an offer is begun, `dispatched` while a worker has the call."""

    def __init__(self, tracing: Tracing, call: Call) -> None:
        self._tracing, self._call = tracing, call
        self._open: Span = NO_SPAN
        self.wait()

    def wait(self) -> None:
        """Begin a wait for the next offer."""
        if self._call.trace:
            self._open = self._tracing.span("waited", self._call.trace, span_attributes(self._call))

    def dispatch(self, offer: Offer) -> str:
        """End the wait and begin the attempt. Return the attempt's traceparent for the worker."""
        if not self._call.trace:
            return ""
        self._open.end("offered")
        place: dict[str, str | int] = {"headgate.attempt": offer.attempt, "headgate.worker": offer.worker}
        self._open = self._tracing.span("dispatched", self._call.trace, span_attributes(self._call) | place)
        return self._open.traceparent

    def end(self, outcome: str, **counts: int) -> None:
        """End what is open, if anything is."""
        self._open.end(outcome, **counts)
