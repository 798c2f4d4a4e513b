"""The log line and the metrics of one HTTP invocation, in CloudWatch's embedded format."""

from __future__ import annotations

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from dispatcher.model.old_outcomes import Dispatched, Queued
from dispatcher.model.worker_protocol import Finished, Token, WorkEvent
from dispatcher.old_operations.context import Context
from functions.observability import SERVICE, log_ended


class Observed:
    """Times one invocation from its arrival. The first call of `end` counts, later ones do nothing."""

    def __init__(self, context: Context, accepted: Dispatched | Queued) -> None:
        self.context = context
        self._invocation = accepted.invocation
        self._queued = isinstance(accepted, Queued)
        self._ttft_ms: float | None = None
        self._tokens = 0
        self._ended = False

    def note(self, item: WorkEvent) -> None:
        if isinstance(item, Token | Finished):
            self._tokens = item.output_tokens
            if self._ttft_ms is None:
                self._ttft_ms = self._elapsed_ms()

    def end(self, outcome: str) -> None:
        if self._ended:
            return
        self._ended = True
        log_ended("http", self._invocation, outcome, ttft_ms=self._ttft_ms, duration_ms=self._elapsed_ms())
        metrics = EphemeralMetrics(namespace=SERVICE, service=SERVICE)
        metrics.add_dimension(name="tenant", value=self._invocation.tenant)
        metrics.add_metric(name=f"outcome_{outcome}", unit=MetricUnit.Count, value=1)
        metrics.add_metric(name="queued", unit=MetricUnit.Count, value=float(self._queued))
        metrics.add_metric(name="output_tokens", unit=MetricUnit.Count, value=self._tokens)
        if self._ttft_ms is not None:
            metrics.add_metric(name="ttft_ms", unit=MetricUnit.Milliseconds, value=self._ttft_ms)
        metrics.flush_metrics()

    def _elapsed_ms(self) -> float:
        return (self.context.clock.now() - self._invocation.arrived_at) * 1000
