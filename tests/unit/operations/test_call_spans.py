"""The gate's spans of a call: one trace over attempts and processes, and next to nothing where nothing is traced."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dispatcher.model.errors import IdempotencyConflict
from dispatcher.model.tracing import NO_SPAN, Span
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.otlp import OtlpTracing
from dispatcher.processes.bootstrap import RealClock
from tests.support.world.memory_gate import Gate
from tests.support.world.story import accepted, queued, read, take_slots
from tests.support.world.worker_client import Act, dies_after

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENT = f"00-{TRACE}-{SPAN}-01"


class Spans:
    def __init__(self, gate: Gate) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = OtlpTracing("test", 1.0, Random(1), RealClock(), self._exporter, None)
        gate.context.tracing = self.tracing

    async def of_client(self) -> list[tuple[str, str]]:
        """Return the client's trace as (name, outcome), in the order of their ends. Check that it is connected."""
        await self.tracing.flush()
        spans = [each for each in self._exporter.get_finished_spans() if _ids(each)[0] == TRACE]
        known = {_ids(each)[1] for each in spans} | {SPAN}
        assert all(each.parent is not None and f"{each.parent.span_id:016x}" in known for each in spans)
        return [(each.name, str((each.attributes or {})["headgate.outcome"])) for each in spans]


def _ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@pytest.fixture
def spans(gate: Gate) -> Spans:
    return Spans(gate)


async def test_an_answered_call(gate: Gate, spans: Spans) -> None:
    await read(await accepted(gate, "a", traceparent=CLIENT))
    await gate.quiet()
    assert sorted(await spans.of_client()) == [("admitted", "offer"), ("dispatched", "finished"), ("waited", "offered")]
    (order,) = [order for _, order in gate.workers.orders]
    assert order.trace[3:35] == TRACE


async def test_a_lost_attempt_and_the_next(gate: Gate, spans: Spans) -> None:
    gate.workers.acts.append(dies_after(1))
    await read(await accepted(gate, "a", "k", traceparent=CLIENT))
    await gate.quiet()
    found = await spans.of_client()
    assert [outcome for name, outcome in found if name == "dispatched"][-1] == "finished"
    assert len([name for name, _ in found if name == "dispatched"]) == 2
    assert len({order.trace for _, order in gate.workers.orders}) == 2


async def test_a_refused_call(gate: Gate, spans: Spans) -> None:
    await read(await accepted(gate, "a", "k"))
    with pytest.raises(IdempotencyConflict) as caught:
        await accepted(gate, "a", "k", max_tokens=2, traceparent=CLIENT)
    await gate.quiet()
    assert await spans.of_client() == [("admitted", caught.value.code)]


async def test_a_call_that_another_process_executes(gate: Gate, spans: Spans) -> None:
    busy = await take_slots(gate, max_tokens=1)
    waiting = await queued(gate, "a", "k", traceparent=CLIENT)
    waiting.leave()
    await busy
    await gate.quiet()
    other = gate.process()
    other.tracing = spans.tracing
    assert await execute_detached(other, waiting.call.id)
    await gate.quiet()
    found = await spans.of_client()
    expected = [("admitted", "waiting"), ("waited", "left"), ("waited", "offered"), ("dispatched", "finished")]
    assert sorted(found) == sorted(expected)


class Counting:
    """A port that traces nothing and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, name: str, client: str, attributes: Mapping[str, str | int]) -> Span:
        self.calls.append(name)
        return NO_SPAN

    def span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Span:
        self.calls.append(name)
        return NO_SPAN

    async def flush(self) -> None: ...


@pytest.mark.parametrize("tokens", [1, 50])
async def test_a_process_that_traces_nothing_calls_the_port_once_a_request(gate: Gate, tokens: int) -> None:
    gate.context.tracing = counting = Counting()
    gate.workers.acts.append(Act())
    await read(await accepted(gate, "a", max_tokens=tokens, traceparent=CLIENT))
    await gate.quiet()
    assert counting.calls == ["admitted"]
    assert [order.trace for _, order in gate.workers.orders] == [""]
