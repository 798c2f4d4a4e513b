"""The spans of one execution on its worker (docs/watching.md). All of them are children of the gate's attempt.

So if the worker is killed, no span that it has sent refers to one that it has not.
"""

from __future__ import annotations

from dispatcher.model.tracing import NO_SPAN, Span, Tracing
from dispatcher.model.worker_protocol import WorkOrder

PREEMPTED = frozenset({"preempted", "preempted_too_often"})
"""The codes of an engine's error for a request that it evicted for good."""


class ExecutionSpans:
    """`queued` from the order's arrival to the first token, `generated` to the engine's end, `settled` until the log
    has the report."""

    def __init__(self, tracing: Tracing, order: WorkOrder, worker: str) -> None:
        self._tracing, self._order, self._worker = tracing, order, worker
        self._open = self._span("queued")

    def first_token(self) -> None:
        self._open.end("first_token")
        self._open = self._span("generated")

    def settle(self, outcome: str, code: str, counts: dict[str, int]) -> Span:
        """End what the engine did. `code`: of its error, or "". Return the span of the report's way to the log."""
        if code in PREEMPTED:
            self._open.event("preempted")
        self._open.end(code or outcome, **counts)
        return self._span("settled")

    def _span(self, name: str) -> Span:
        order = self._order
        if not order.trace:
            return NO_SPAN
        return self._tracing.span(
            name,
            order.trace,
            {
                "headgate.tenant": order.terms.tenant,
                "headgate.model": order.terms.model,
                "headgate.tier": order.tier.value,
                "headgate.invocation": order.invocation,
                "headgate.attempt": order.attempt,
                "headgate.worker": self._worker,
            },
        )
