"""Spans as calls: as OpenTelemetry's own SDK encodes them, and a sentence for each file that has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, set_span_in_context

from dispatcher.monitor.recording import RecordedCall
from headgate.workloads.arrivals import TraceError
from headgate.workloads.spans import read_calls

S = 1_000_000_000
VLLM = {
    "gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.completion_tokens": 3, "gen_ai.response.model": "m",
    "gen_ai.latency.time_to_first_token": 0.25,
}  # fmt: skip


class Traced:
    """Spans with chosen times, in a trace of their own each, or below the one before."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(resource=Resource({"service.name": "shop"}))
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._last: Span | None = None

    def span(self, name: str, start_s: float, end_s: float, **attributes: object) -> None:
        tracer = self._provider.get_tracer("t")
        parent = None if self._last is None else set_span_in_context(self._last)
        span = tracer.start_span(name, parent, attributes=attributes, start_time=int(start_s * S))  # type: ignore[arg-type]
        self._last = span
        span.end(int(end_s * S))

    def apart(self) -> None:
        self._last = None

    def lines(self) -> Iterator[str]:
        for span in self._exporter.get_finished_spans():
            yield encoded([span])

    def document(self) -> str:
        return encoded(list(self._exporter.get_finished_spans()))


def encoded(spans: list[ReadableSpan]) -> str:
    return str(MessageToJson(encode_spans(spans), indent=None))


@pytest.mark.parametrize("is_in_lines", [True, False])
def test_spans_of_generative_ai(tmp_path: Path, *, is_in_lines: bool) -> None:
    traced = Traced()
    traced.span("llm_request", 1_700_000_001.5, 1_700_000_003.0, **VLLM)
    traced.apart()
    traced.span("chat m", 1_700_000_000.0, 1_700_000_002.0, **{
        "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 0, "user.id": "ann", "gen_ai.request.model": "n",
    })  # fmt: skip
    traced.span("database", 1.0, 2.0, **{"db.system": "sqlite"})
    path = tmp_path / "spans.json"
    path.write_text("\n".join(traced.lines()) + "\n" if is_in_lines else traced.document())
    assert read_calls(path) == [
        RecordedCall(1_700_000_000.0, "ann", "", "n", "", "", 5, 0, None, 2.0),
        RecordedCall(1_700_000_001.5, "shop", "", "m", "", "", 12, 3, 0.25, 1.5),
    ]


def test_an_agents_sum_is_no_call_of_its_own(tmp_path: Path) -> None:
    """Agents repeat the tokens of the calls below them (semantic-conventions-genai issue 19, strands harness-sdk 3602),
    and a client those of the server."""
    traced = Traced()
    tokens = {"gen_ai.usage.input_tokens": 300, "gen_ai.usage.output_tokens": 60}
    traced.span("invoke_agent", 1.0, 9.0, **tokens)
    traced.span("tool", 1.0, 9.0)
    traced.span("chat", 2.0, 4.0, **{"llm.token_count.prompt": 300, "llm.token_count.completion": 60})
    traced.apart()
    traced.span("chat", 5.0, 6.0, **{**tokens, "llm.model_name": "other"})
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    assert [(call.begun_at, call.model, call.input_tokens) for call in read_calls(path)] == [
        (2.0, "", 300), (5.0, "other", 300)
    ]  # fmt: skip


def test_a_call_that_client_gate_and_engine_saw_is_one(tmp_path: Path) -> None:
    traced = Traced()
    own = {"headgate.invocation": "p-1", "headgate.tenant": "a"}
    ended = {"headgate.outcome": "finished", "headgate.input_tokens": 12, "headgate.output_tokens": 3}
    traced.span("chat", 9.9, 13.1, **{"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3})
    traced.span("waited", 10.0, 12.0, **own)
    traced.span("dispatched", 12.0, 13.0, **own, **ended)
    traced.span("llm_request", 12.1, 12.9, **VLLM)
    traced.apart()
    traced.span("llm_request", 14.0, 15.0, **VLLM)  # past the gate
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    assert [(call.begun_at, call.tenant) for call in read_calls(path)] == [(10.0, "a"), (14.0, "shop")]


def test_headgates_own_spans_are_one_call(tmp_path: Path) -> None:
    traced = Traced()
    own = {"headgate.invocation": "p-1", "headgate.tenant": "a", "headgate.model": "m", "headgate.tier": "premium"}
    ended = {"headgate.outcome": "finished", "headgate.input_tokens": 8, "headgate.output_tokens": 4}
    traced.span("admitted", 10.0, 10.1, **{**own, "headgate.outcome": "waiting"})
    traced.span("queued", 15.0, 15.5, **own)
    traced.span("dispatched", 15.0, 19.0, **own, **ended)
    traced.span("waited", 14.0, 15.0, **own)
    traced.span("dispatched", 12.0, 14.0, **own, **{"headgate.outcome": "broken"})
    traced.span("waited", 10.1, 12.0, **own)
    traced.apart()
    traced.span("waited", 11.0, 12.0, **{**own, "headgate.invocation": "p-2"})  # without an end
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    (call,) = read_calls(path)
    assert call[:8] == (10.1, "a", "", "m", "premium", "", 8, 4)
    assert call[8:] == pytest.approx((5.4, 8.9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not OTLP in JSON"),
        ("[]", "not OTLP in JSON"),
        ('{"resourceSpans": 5}', "not OTLP in JSON (resourceSpans"),
        ('{"resourceSpans": []}', "no span with gen_ai.usage.input_tokens"),
        ('{"resourceSpans": []}\n{"resourceSpans": [', "line 2: not OTLP in JSON"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "-5"}]}]}]}', "startTimeUnixNano"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"endTimeUnixNano": "soon"}]}]}]}', "endTimeUnixNano"),
    ],
)
def test_a_file_without_calls_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text)
    with pytest.raises(TraceError) as refused:
        read_calls(path)
    assert says in str(refused.value)
    assert "spans.json" in str(refused.value)


def test_a_span_with_a_negative_number_of_tokens_is_no_call(tmp_path: Path) -> None:
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **{**VLLM, "gen_ai.usage.prompt_tokens": -1})
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    with pytest.raises(TraceError, match="no span with"):
        read_calls(path)
