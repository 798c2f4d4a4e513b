"""Spans as calls: as OpenTelemetry's own SDK encodes them, and a sentence for each file that has none."""

from __future__ import annotations

import json
import re
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
    assert read_calls(path).calls == [
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
    assert [(call.begun_at, call.model, call.input_tokens) for call in read_calls(path).calls] == [
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
    assert [(call.begun_at, call.tenant) for call in read_calls(path).calls] == [(10.0, "a"), (14.0, "shop")]


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
    (call,) = read_calls(path).calls
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


def test_a_span_that_was_sent_twice_is_one_call(tmp_path: Path) -> None:
    """Exporters repeat what was not acknowledged (opentelemetry-collector issue 11056)."""
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **VLLM)
    traced.apart()
    traced.span("llm_request", 1.0, 2.0, **VLLM)
    path = tmp_path / "spans.json"
    path.write_text("\n".join([*traced.lines(), *traced.lines()]))
    assert [call.begun_at for call in read_calls(path).calls] == [1.0, 1.0]
    path.write_text(traced.document().replace('"spanId"', '"unknown"'))
    assert [call.begun_at for call in read_calls(path).calls] == [1.0, 1.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gen_ai.usage.prompt_tokens": 10_000_001},
        {"gen_ai.usage.prompt_tokens": "many"},
        {"gen_ai.usage.completion_tokens": 2.5},
        {"gen_ai.usage.completion_tokens": float("nan")},
    ],
)
def test_what_no_trace_may_have_is_left_out_and_counted(tmp_path: Path, wrong: dict[str, object]) -> None:
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **VLLM)
    traced.apart()
    traced.span("llm_request", 3.0, 4.0, **{**VLLM, **wrong})
    traced.apart()
    traced.span("llm_request", 6.0, 5.0, **VLLM)
    traced.apart()
    traced.span("database", 6.0, 7.0)
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    read = read_calls(path)
    assert [call.begun_at for call in read.calls] == [1.0]
    assert read.left_out == 2


def test_a_span_without_a_beginning_is_left_out(tmp_path: Path) -> None:
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **VLLM)
    traced.apart()
    traced.span("llm_request", 3.0, 4.0, **VLLM)
    path = tmp_path / "spans.json"
    path.write_text(traced.document().replace('"startTimeUnixNano": "3000000000"', '"startTimeUnixNano": "0"'))
    assert [call.begun_at for call in read_calls(path).calls] == [1.0]
    assert read_calls(path).left_out == 1


@pytest.mark.parametrize(("ttft_s", "is_known"), [(0.0, True), (1.0, True), (1.5, False), (-0.5, False)])
def test_a_first_token_outside_of_its_call_is_not_known(tmp_path: Path, ttft_s: float, *, is_known: bool) -> None:
    """`--fit` refuses a whole log for one such row."""
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **{**VLLM, "gen_ai.latency.time_to_first_token": ttft_s})
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    (call,) = read_calls(path).calls
    assert call.first_token_s == (ttft_s if is_known else None)


def test_tokens_may_be_texts_and_have_the_names_of_claude_code(tmp_path: Path) -> None:
    traced = Traced()
    traced.span("claude_code.llm_request", 1.0, 2.0, input_tokens="12", output_tokens=3)
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    (call,) = read_calls(path).calls
    assert (call.input_tokens, call.output_tokens) == (12, 3)


def test_logs_and_metrics_of_the_same_exporter_are_skipped(tmp_path: Path) -> None:
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **VLLM)
    path = tmp_path / "spans.json"
    path.write_text("\n".join(['{"resourceLogs": [{}]}', '{"resourceMetrics": []}', *traced.lines()]))
    assert len(read_calls(path).calls) == 1
    path.write_text('{"resourceLogs": []}\n{"resourceProfiles": []}')
    with pytest.raises(TraceError, match=r"line 2: not OTLP in JSON .*no resourceSpans"):
        read_calls(path)


def test_a_line_ends_only_at_a_line_feed(tmp_path: Path) -> None:
    """Prompts in attributes have U+2028 and U+0085 (codex-lb issue 1010)."""
    traced = Traced()
    for prompt in ("a\u2028b", "a\x85b"):
        traced.apart()
        traced.span("llm_request", 1.0, 2.0, **{**VLLM, "gen_ai.prompt": prompt})
    path = tmp_path / "spans.json"
    lines = [json.dumps(json.loads(line), ensure_ascii=False) for line in traced.lines()]
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert len(read_calls(path).calls) == 2


def test_a_tenant_is_a_name_that_a_trace_may_have(tmp_path: Path) -> None:
    traced = Traced()
    for start_s, name in enumerate(("", "a\nb\x1b[2J", "x" * 300), 1):
        traced.apart()
        traced.span("llm_request", start_s, 9.0, **{**VLLM, "tenant.id": name})
    path = tmp_path / "spans.json"
    path.write_text(traced.document())
    assert [call.tenant for call in read_calls(path).calls] == ["shop", "a b [2J", "x" * 200]


def test_a_span_that_is_its_own_parent_is_a_call(tmp_path: Path) -> None:
    traced = Traced()
    traced.span("llm_request", 1.0, 2.0, **VLLM)
    path = tmp_path / "spans.json"
    path.write_text(re.sub(r'"spanId": ("[^"]*")', r'"spanId": \1, "parentSpanId": \1', traced.document()))
    assert len(read_calls(path).calls) == 1
