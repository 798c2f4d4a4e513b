"""The port for traces (dispatcher/model/tracing.py) by OpenTelemetry's SDK. Spans are sent as OTLP over HTTP.

Only a process that has an endpoint loads this module. Spans are sent in batches by a thread of the SDK. If the receiver
does not answer, spans are lost. Only a flush waits for it, which delays the answer of a function. After a failure the
next flushes therefore do not wait for PAUSE_FIRST_S, and after each further failure for twice as long, at most
PAUSE_MAX_S. So a dead receiver costs a process one wait, and then none for minutes. The spans stay in the queue of the
SDK meanwhile, and its thread still tries to send them.

The endpoint of the SDK's own variables (OTEL_EXPORTER_OTLP_*) is a collector, or X-Ray. X-Ray takes OTLP at
https://xray.REGION.amazonaws.com/v1/traces. It needs no collector beside the process; its requests are signed with the
credentials of the process (SigV4, service `xray`). AWS describes this as traces without a collector:
docs.aws.amazon.com, CloudWatch, "OTLP endpoints".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

import botocore.session
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from opentelemetry.trace import Span as SdkSpan
from requests.auth import AuthBase

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tracing import NO_SPAN, Span, is_recorded, parse_traceparent, unrecorded
from dispatcher.ports import Clock

_SEND_S = 2.0
"""The longest time for the receiver to take a batch, tries included. The SDK's 10 s exceed what a function has left."""
XRAY = re.compile(r"https://xray\.([a-z0-9-]+)\.amazonaws\.(com|com\.cn|eu)(/.*)?")


def make_exporter(endpoint: str) -> SpanExporter:
    """Return an exporter to `endpoint`, the value of OTEL_EXPORTER_OTLP_ENDPOINT. Raises ConfigurationError if it is
    X-Ray's and the process has no AWS credentials."""
    found = XRAY.fullmatch(endpoint)
    return OTLPSpanExporter(timeout=_SEND_S, session=signed_session(found[1], _credentials()) if found else None)


def signed_session(region: str, credentials: Credentials) -> requests.Session:
    """Return a session that signs each request for X-Ray in this region."""
    session = requests.Session()
    session.auth = _SigV4(region, credentials)
    return session


def _credentials() -> Credentials:
    try:
        found = botocore.session.get_session().get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"no AWS credentials for X-Ray: {error}") from None
    if found is None:
        advice = "give the process a role, or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        raise ConfigurationError(f"OTEL_EXPORTER_OTLP_ENDPOINT is X-Ray's, and there are no AWS credentials; {advice}")
    return found


@dataclass(frozen=True, slots=True)
class _SigV4(AuthBase):
    region: str
    credentials: Credentials

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        signed = AWSRequest(request.method, request.url, data=request.body)
        SigV4Auth(self.credentials.get_frozen_credentials(), "xray", self.region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        return request


PAUSE_FIRST_S = 120.0
PAUSE_MAX_S = 1800.0


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

    The draw does not depend on the trace id, which a client can choose. `flush_s`: the longest wait of a flush, in
    seconds; None: no limit.
    """

    def __init__(
        self,
        service: str,
        ratio: float,
        random: Random,
        clock: Clock,
        exporter: SpanExporter,
        flush_s: float | None = _SEND_S,
    ) -> None:
        self._ratio, self._random, self._clock, self.flush_s = ratio, random, clock, flush_s
        self._pauses = FlushPauses()
        resource = Resource.create({SERVICE_NAME: service})
        self._provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(_Watched(exporter, self._pauses, clock)))
        self._unrecorded = TracerProvider(sampler=ALWAYS_OFF, resource=resource).get_tracer("headgate")
        self._tracer = self._provider.get_tracer("headgate")

    def begin(self, name: str, client: str, attributes: Mapping[str, str | int]) -> Span:
        parent, is_drawn = parse_traceparent(client), self._random.random() < self._ratio
        if parent:
            return self._start_span(
                name, parent if is_drawn and is_recorded(parent) else unrecorded(parent), attributes
            )
        tracer = self._tracer if is_drawn else self._unrecorded
        return _OtlpSpan(tracer.start_span(name, Context(), attributes=dict(attributes)))

    def span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        return self._start_span(name, parent, attributes) if parse_traceparent(parent) else NO_SPAN

    async def flush(self) -> None:
        if not self._pauses.allow(self._clock.monotonic()):
            return
        # Its batch processor ignores the time limit of a flush. The thread may go on, at most _SEND_S a batch.
        sending = asyncio.ensure_future(asyncio.to_thread(self._provider.force_flush))
        done, _ = await asyncio.wait({sending}, timeout=self.flush_s)
        if not done:
            self._pauses.on_failure(self._clock.monotonic())

    def _start_span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        return _OtlpSpan(self._tracer.start_span(name, _context_of(parent), attributes=dict(attributes)))


class FlushPauses:
    """Decides whether a flush waits for the receiver of spans. Pure: the time comes in.

    All times are of one clock that is never set back, in seconds.

    The thread of the SDK and the event loop both call it. An update that is lost between them costs one more wait.
    """

    def __init__(self) -> None:
        self._pause_s, self._until_s = 0.0, -inf

    def allow(self, now_s: float) -> bool:
        """Return whether a flush may wait now."""
        return now_s >= self._until_s

    def sent(self) -> None:
        """Record that the receiver took spans: this ends a pause."""
        self._pause_s, self._until_s = 0.0, -inf

    def on_failure(self, now_s: float) -> None:
        """Record that the receiver took no spans: this begins a pause. It does nothing during one."""
        if self.allow(now_s):
            self._pause_s = min(max(PAUSE_FIRST_S, 2 * self._pause_s), PAUSE_MAX_S)
            self._until_s = now_s + self._pause_s


class _Watched(SpanExporter):
    """An exporter whose successes and failures the pauses learn of."""

    def __init__(self, exporter: SpanExporter, pauses: FlushPauses, clock: Clock) -> None:
        self._exporter, self._pauses, self._clock = exporter, pauses, clock

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._pauses.sent()
        else:
            self._pauses.on_failure(self._clock.monotonic())
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


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
            self._span.set_attributes({"headgate.outcome": outcome, **_count_attributes(counts)})
            self._span.end()


def _count_attributes(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"headgate.{name}": count for name, count in counts.items()}


def _context_of(parent: str) -> Context:
    """Return a context with nothing but the parent: no tracestate and no baggage."""
    _, trace, span, flags = parent.split("-")
    named = SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1))
    return set_span_in_context(NonRecordingSpan(named), Context())
