"""Spans: what a client's traceparent may decide, and what a process without an endpoint loads."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tracing import NO_SPAN, parse_traceparent, trace_id_of
from dispatcher.otlp import OtlpTracing
from dispatcher.processes.bootstrap import RealClock, make_tracing
from tests.support.hang_guard import HANG_S

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RECORDED, UNRECORDED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
INVALID = [
    "",
    "x",
    RECORDED.upper(),
    RECORDED + "\n",
    RECORDED + "-00",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE}-{SPAN}-0",
    f"00-{TRACE[:-1]}١-{SPAN}-01",
]


async def recorded(client: str, ratio: float, requests: int = 1) -> list[str]:
    """Begin requests of this client, each with a span under it. Return the traceparents that left the process."""
    exporter = InMemorySpanExporter()
    tracing = OtlpTracing("test", ratio, Random(1), RealClock(), exporter, None)
    for _ in range(requests):
        root = tracing.begin("admitted", client, {"headgate.tenant": "a"})
        child = tracing.span("waited", root.traceparent, {})
        assert trace_id_of(child.traceparent) == trace_id_of(root.traceparent)
        child.end("offered")
        root.end("waiting")
    await tracing.flush()
    found = [span.get_span_context() for span in exporter.get_finished_spans()]
    return [f"{context.trace_id:032x}" for context in found if context is not None]


async def test_a_valid_traceparent_is_continued() -> None:
    assert await recorded(RECORDED, 1.0) == [TRACE, TRACE]


@pytest.mark.parametrize("client", INVALID)
async def test_an_invalid_one_begins_a_new_trace(client: str) -> None:
    assert parse_traceparent(client) == ""
    traces = await recorded(client, 1.0)
    assert len(traces) == 2
    assert traces[0] == traces[1] != TRACE


async def test_a_client_may_ask_for_no_record() -> None:
    assert await recorded(UNRECORDED, 1.0) == []


@pytest.mark.parametrize("client", [RECORDED, f"00-{'0' * 31}1-{SPAN}-01", ""])
async def test_a_client_cannot_ask_for_more_than_the_ratio(client: str) -> None:
    """Not even with a trace id that a sampler by trace id would always take."""
    assert await recorded(client, 0.0, 50) == []
    random = Random(1)
    assert len(await recorded(client, 0.25, 200)) == 2 * sum(random.random() < 0.25 for _ in range(200)) > 0


@given(st.text(max_size=80))
def test_no_text_of_a_client_raises(text: str) -> None:
    assert parse_traceparent(text) in ("", text)


async def test_a_span_of_no_parent_is_none() -> None:
    tracing = OtlpTracing("test", 1.0, Random(1), RealClock(), InMemorySpanExporter(), None)
    assert tracing.span("waited", "", {}) is NO_SPAN


async def test_a_span_ends_once() -> None:
    exporter = InMemorySpanExporter()
    tracing = OtlpTracing("test", 1.0, Random(1), RealClock(), exporter, None)
    span = tracing.begin("admitted", "", {})
    span.event("preempted")
    span.end("first", output_tokens=3)
    span.end("second")
    await tracing.flush()
    (found,) = exporter.get_finished_spans()
    assert found.attributes == {"headgate.outcome": "first", "headgate.output_tokens": 3}
    assert [event.name for event in found.events] == ["preempted"]


def test_without_an_endpoint_the_sdk_is_not_loaded() -> None:
    make = "from dispatcher.processes.bootstrap import make_tracing; make_tracing('front')"
    code = f"import sys; {make}; print(*sys.modules)"
    without = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    assert "opentelemetry" not in _printed(code, without)
    assert "opentelemetry" in _printed(code, without | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})


@pytest.mark.parametrize("ratio", ["much", "", "-0.1", "1.5", "nan"])
def test_a_wrong_ratio_is_refused(ratio: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    with pytest.raises(ConfigurationError, match="OTEL_TRACES_SAMPLER_ARG"):
        make_tracing("front")


def _printed(code: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True, env=environment)
    return done.stdout
