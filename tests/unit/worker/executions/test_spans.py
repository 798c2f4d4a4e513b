"""The worker's spans of an execution: all of them under the gate's attempt, also of one that the engine evicts."""

from __future__ import annotations

from random import Random

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dispatcher.otlp import OtlpTracing
from dispatcher.processes.bootstrap import RealClock
from gpu_worker.engines.interface import Evicted
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import FailingEngine, ScriptedEngine

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ATTEMPT = f"00-{TRACE}-{SPAN}-01"


async def spans_of(engine: ScriptedEngine, trace: str) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    worker = WorkerHarness(engine)
    worker.executions.tracing = tracing = OtlpTracing("test", 1.0, Random(1), RealClock(), exporter, None)
    await worker.execute(order(trace=trace))
    await worker.executions.idle()
    await tracing.flush()
    return list(exporter.get_finished_spans())


def outcomes(spans: list[ReadableSpan]) -> list[tuple[str, object]]:
    return [(span.name, (span.attributes or {})["headgate.outcome"]) for span in spans]


async def test_the_spans_of_an_execution() -> None:
    spans = await spans_of(ScriptedEngine(), ATTEMPT)
    assert outcomes(spans) == [("queued", "first_token"), ("generated", "done"), ("settled", "reported")]
    assert {span.parent.span_id if span.parent else 0 for span in spans} == {int(SPAN, 16)}
    attributes = spans[1].attributes or {}
    assert (attributes["headgate.input_tokens"], attributes["headgate.output_tokens"]) == (5, 3)


async def test_an_evicted_one() -> None:
    spans = await spans_of(FailingEngine(Evicted(), 2), ATTEMPT)
    assert outcomes(spans) == [("queued", "first_token"), ("generated", "preempted"), ("settled", "reported")]
    assert [event.name for span in spans for event in span.events] == ["preempted"]


async def test_without_a_trace_there_are_none() -> None:
    assert await spans_of(ScriptedEngine(), "") == []
