"""A collector of traces for tests: it takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Seen:
    """`service`: the name of the process that sent the span."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str | int]


@dataclass(frozen=True)
class Received:
    """One request as it arrived. `headers`: by their names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Collector:
    url: str = ""
    spans: list[Seen] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    """The bodies, unpacked: everything that left the processes."""
    requests: list[Received] = field(default_factory=list)

    def trace(self, trace: str) -> list[Seen]:
        return [span for span in list(self.spans) if span.trace == trace]

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            found = [span for scope in resource.scope_spans for span in scope.spans]
            self.spans += [_seen(names["service.name"], span) for span in found]


def _seen(service: str, span: Span) -> Seen:
    values = {each.key: each.value for each in span.attributes}
    attributes: dict[str, str | int] = {name: value.string_value or value.int_value for name, value in values.items()}
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    return Seen(service, span.name, *ids, attributes)


@contextmanager
def otlp_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            collector.requests.append(Received(self.path, headers, body))
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
