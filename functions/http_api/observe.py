"""The log line and the metrics of one HTTP invocation, in CloudWatch's embedded format."""

from __future__ import annotations

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from dispatcher.model.commands import Waiting
from dispatcher.model.errors import AnsweredError, ServiceError
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent
from dispatcher.operations.calls.submit import NewCall
from dispatcher.ports import Clock
from dispatcher.processes.metrics_namespace import SERVICE, metrics_namespace
from functions.observability import log_ended


class Observed:
    """Times one invocation from its arrival. The first call of `end` or `fail` counts, later ones do nothing."""

    def __init__(self, clock: Clock, accepted: NewCall) -> None:
        self._clock = clock
        self._following = accepted.following
        self._queued = isinstance(accepted.outcome, Waiting)
        self._ttft_ms: float | None = None
        self._tokens = 0
        self._ended = False

    def note(self, item: WorkEvent) -> None:
        if isinstance(item, Started):  # again: the attempt before it was lost, and its tokens with it
            self._ttft_ms = None
        if isinstance(item, Token | Finished):
            self._tokens = item.output_tokens
            if self._ttft_ms is None:
                self._ttft_ms = self._elapsed_ms()

    def fail(self, error: AnsweredError) -> None:
        self._end(error.code, failed=isinstance(error, ServiceError))

    def end(self, outcome: str) -> None:
        self._end(outcome, failed=False)

    def _end(self, outcome: str, *, failed: bool) -> None:
        if self._ended:
            return
        self._ended = True
        log_ended(
            "http",
            self._following,
            outcome,
            output_tokens=self._tokens,
            ttft_ms=self._ttft_ms,
            duration_ms=self._elapsed_ms(),
        )
        metrics = EphemeralMetrics(namespace=metrics_namespace(), service=SERVICE)
        metrics.add_dimension(name="pool", value=self._following.call.pool)
        metrics.add_dimension(name="tier", value=self._following.call.tenant.tier.value)
        metrics.add_metric(name=f"outcome_{outcome}", unit=MetricUnit.Count, value=1)
        metrics.add_metric(name="failed", unit=MetricUnit.Count, value=float(failed))
        metrics.add_metric(name="queued", unit=MetricUnit.Count, value=float(self._queued))
        metrics.add_metric(name="output_tokens", unit=MetricUnit.Count, value=self._tokens)
        if self._ttft_ms is not None:
            metrics.add_metric(name="ttft_ms", unit=MetricUnit.Milliseconds, value=self._ttft_ms)
        metrics.flush_metrics()

    def _elapsed_ms(self) -> float:
        return (self._clock.now() - self._following.call.created_at) * 1000
