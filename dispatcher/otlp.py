"""Spans by OpenTelemetry, sent to a collector as OTLP over HTTP. Loaded only by a process that has an endpoint.

The SDK reads endpoint and headers from its own variables (OTEL_EXPORTER_OTLP_*). Spans are sent in batches
by a thread of its own; if the collector does not answer, spans are lost and requests are not delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from opentelemetry.trace import Span as SdkSpan

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tracing import NO_SPAN, Span, is_recorded, parse_traceparent, unrecorded

SEND_S = 2.0
"""The longest time for a collector to take a batch, tries included. The SDK's own 10 s exceed what a function has left.
"""


def ratio_of(text: str) -> float:
    """Return the part of requests to record, as OTEL_TRACES_SAMPLER_ARG gives it. Raises ConfigurationError."""
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigurationError(
            f"OTEL_TRACES_SAMPLER_ARG is {text!r}; set it to the part of requests to record, 0 to 1"
        )
    return ratio


class OtlpTracing:
    """dispatcher.model.tracing.Tracing. `ratio` of the requests are recorded, drawn from `random`.

    The draw does not depend on the trace id, which a client can choose.
    """

    def __init__(self, service: str, ratio: float, random: Random, exporter: SpanExporter | None = None) -> None:
        self._ratio, self._random = ratio, random
        resource = Resource.create({SERVICE_NAME: service})
        self._provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(timeout=SEND_S)))
        self._unrecorded = TracerProvider(sampler=ALWAYS_OFF, resource=resource).get_tracer("headgate")
        self._tracer = self._provider.get_tracer("headgate")

    def begin(self, name: str, client: str, attributes: Mapping[str, str | int]) -> Span:
        parent, is_drawn = parse_traceparent(client), self._random.random() < self._ratio
        if parent:
            return self._begun(name, parent if is_drawn and is_recorded(parent) else unrecorded(parent), attributes)
        tracer = self._tracer if is_drawn else self._unrecorded
        return _OtlpSpan(tracer.start_span(name, Context(), attributes=dict(attributes)))

    def span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        return self._begun(name, parent, attributes) if parse_traceparent(parent) else NO_SPAN

    async def flush(self) -> None:
        # Its batch processor ignores the time limit of a flush. The thread may go on, at most SEND_S a batch.
        await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(self._provider.force_flush))}, timeout=SEND_S)

    def _begun(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        return _OtlpSpan(self._tracer.start_span(name, _context_of(parent), attributes=dict(attributes)))


class _OtlpSpan:
    def __init__(self, span: SdkSpan) -> None:
        self._span, self._ended = span, False

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def end(self, outcome: str, **counts: int) -> None:
        if not self._ended:
            self._ended = True
            self._span.set_attributes({"headgate.outcome": outcome, **_named(counts)})
            self._span.end()


def _named(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"headgate.{name}": count for name, count in counts.items()}


def _context_of(parent: str) -> Context:
    """Return a context with nothing but the parent: no tracestate and no baggage."""
    _, trace, span, flags = parent.split("-")
    named = SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1))
    return set_span_in_context(NonRecordingSpan(named), Context())
