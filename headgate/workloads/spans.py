"""OpenTelemetry's spans as calls: files of OTLP in JSON, as a collector's file exporter writes them.

A file is one object with `resourceSpans`, or has one on each line; lines with logs and metrics, which an exporter may
write to the same file, are skipped. Two kinds of spans are calls:

- a span with the tokens of OpenTelemetry's conventions for generative AI (`gen_ai.usage.input_tokens` and
  `output_tokens`, or the older `prompt_tokens` and `completion_tokens`), as vLLM and instrumented SDKs write them,
  with those of OpenInference (`llm.token_count.prompt` and `completion`), or with `input_tokens` and `output_tokens`,
  as Claude Code's (claude-code issue 50776). A span with another one below it repeats its
  tokens, as an agent's does, or a client's above the server's, and is no call;
- headgate's own (docs/watching.md): `waited` begins a call, `queued` ends with its first token, and the `dispatched`
  that finished has its tokens and its end. In a trace with such a call no other span is one: a client and an engine
  see the same call.

All other spans are skipped. A span that comes twice, because an exporter sent it again (opentelemetry-collector issue
11056), counts once. A call with tokens that no trace may have, or without a beginning before its end, is left out and
counted. Every error is a TraceError that names file and line, and says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from dispatcher.monitor.recording import RecordedCall
from headgate.workloads.arrivals import TENANT_CHARS_MAX, TraceError
from headgate.workloads.bench_results import ReadCalls, is_bench_result, read_bench_result
from headgate.workloads.columns import NS_PER_S, whole_tokens
from headgate.workloads.traces import unreadable

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "input_tokens")
_OUTPUT = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion", "output_tokens",
)  # fmt: skip
_FIRST_TOKEN = (
    "gen_ai.latency.time_to_first_token", "gen_ai.server.time_to_first_token", "gen_ai.response.time_to_first_chunk",
)  # fmt: skip
"""Their values are in seconds."""
_MODEL = ("headgate.model", "gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
_TENANT = ("headgate.tenant", "tenant.id", "tenant", "enduser.id", "user.id", "service.name")
"""The last one is of the resource: without another name, a service is a tenant."""


class _Value(BaseModel):
    text: str | None = Field(None, alias="stringValue")
    whole: int | None = Field(None, alias="intValue")
    number: float | None = Field(None, alias="doubleValue")

    def get(self) -> str | float | None:
        return next((each for each in (self.text, self.whole, self.number) if each is not None), None)


class _Attribute(BaseModel):
    key: str
    value: _Value = Field(default_factory=lambda: _Value.model_validate({}))


class _Span(BaseModel):
    name: str = ""
    trace: str = Field("", alias="traceId")
    id: str = Field("", alias="spanId")
    parent: str = Field("", alias="parentSpanId")
    start_ns: int = Field(0, alias="startTimeUnixNano", ge=0)
    end_ns: int = Field(0, alias="endTimeUnixNano", ge=0)
    attributes: list[_Attribute] = []


class _Resource(BaseModel):
    attributes: list[_Attribute] = []


class _Scope(BaseModel):
    spans: list[_Span] = []


class _ResourceSpans(BaseModel):
    resource: _Resource = _Resource()
    scopes: list[_Scope] = Field([], alias="scopeSpans")


class _Document(BaseModel):
    """An object of OTLP. One exporter may write spans, logs and metrics to the same file."""

    resources: list[_ResourceSpans] = Field([], alias="resourceSpans")
    logs: list[object] = Field([], alias="resourceLogs")
    metrics: list[object] = Field([], alias="resourceMetrics")

    @model_validator(mode="after")
    def _check_signal(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("no resourceSpans")
        return self


Attributes = Mapping[str, str | float | None]


def read_calls(path: Path) -> ReadCalls:
    """Return the calls of a file of spans, or of the results of vLLM's benchmark, in order of time. Raises TraceError,
    also if there is none."""
    text = _text(path)
    return read_bench_result(path, text) if is_bench_result(text) else _read_spans(path, text)


def _read_spans(path: Path, text: str) -> ReadCalls:
    own, parents, left_out = _OwnSpans({}), _Parents({}), 0
    counted: dict[tuple[str, str], tuple[_Span, RecordedCall]] = {}
    for number, (span, attributes) in enumerate(_spans(path, text)):
        parents.take(span)
        if "headgate.invocation" in attributes:
            own.take(span, attributes)
        elif _first(attributes, _INPUT) is None or _first(attributes, _OUTPUT) is None:
            continue
        elif (call := _call_of(span, attributes)) is None:
            left_out += 1
        else:
            counted[span.trace, span.id or f"without-id-{number}"] = span, call
    of_own = dict(own.calls())
    own_traces = {trace for trace, _ in of_own} - {""}
    above = parents.above(span for span, _ in counted.values())
    calls = [call for key, (_, call) in counted.items() if key[0] not in own_traces and key not in above]
    calls = sorted([*calls, *of_own.values()])
    if not calls:
        unusable = f" ({left_out} have tokens or times that a trace cannot have)" if left_out else ""
        raise TraceError(
            f"{path}: no span with {_INPUT[0]} and {_OUTPUT[0]}{unusable}, and none of headgate's: record the server's "
            "own traces"
        )
    return ReadCalls(calls, left_out)


def _spans(path: Path, text: str) -> Iterator[tuple[_Span, Attributes]]:
    for document in _documents(path, text):
        for each in document.resources:
            of_resource = _read_attributes(each.resource.attributes)
            for span in (span for scope in each.scopes for span in scope.spans):
                yield span, {**of_resource, **_read_attributes(span.attributes)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8 text") from None


def _documents(path: Path, text: str) -> Iterator[_Document]:
    """Yield the document of each line, or of the whole file if its first line is none."""
    # str.splitlines() would also split at U+2028, which a prompt in an attribute may have.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        yield _Document.model_validate_json(text)
        return
    except ValidationError as error:
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            raise TraceError(f"{path}: {_problem(error)}") from None
    for number, line in lines:
        try:
            yield _Document.model_validate_json(line)
        except ValidationError as error:
            raise TraceError(f"{path}, line {number}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return (
        f"not OTLP in JSON ({f'{place}: ' if place else ''}{first['msg']}): write it with a collector's file exporter"
    )


def _read_attributes(attributes: list[_Attribute]) -> dict[str, str | float | None]:
    return {each.key: each.value.get() for each in attributes}


def _call_of(span: _Span, attributes: Attributes) -> RecordedCall | None:
    """Return the call of a span with both numbers of tokens; None if its tokens or times are those of no call."""
    tokens = _tokens(attributes, _INPUT), _tokens(attributes, _OUTPUT)
    if tokens[0] is None or tokens[1] is None or not 0 < span.start_ns <= span.end_ns:
        return None
    first_token_s, latency_s = _first(attributes, _FIRST_TOKEN), (span.end_ns - span.start_ns) / NS_PER_S
    is_known = isinstance(first_token_s, int | float) and 0 <= first_token_s <= latency_s
    return RecordedCall(
        span.start_ns / NS_PER_S,
        _name(attributes, _TENANT) or "all",
        *("", _name(attributes, _MODEL), "", ""),
        *(tokens[0], tokens[1]),
        float(first_token_s) if is_known and first_token_s is not None else None,
        latency_s,
    )


def _tokens(attributes: Attributes, names: tuple[str, ...]) -> int | None:
    """Return the tokens, which some SDKs write as text; None if no trace may have them."""
    found = _first(attributes, names)
    return whole_tokens(str(found)) if found is not None else None


def _name(attributes: Attributes, names: tuple[str, ...]) -> str:
    """Return the first name that a trace may have, with a space for each character that is not visible."""
    text = str(_first(attributes, names) or "")
    return "".join(char if char.isprintable() else " " for char in text)[:TENANT_CHARS_MAX].strip()


def _first(attributes: Attributes, names: tuple[str, ...]) -> str | float | None:
    return next((attributes[name] for name in names if attributes.get(name) not in {None, ""}), None)


@dataclass(slots=True)
class _Parents:
    """The parent of each span, by trace and id."""

    of: dict[tuple[str, str], str]

    def take(self, span: _Span) -> None:
        if span.id and span.parent not in {"", span.id}:
            self.of[span.trace, span.id] = span.parent

    def above(self, spans: Iterable[_Span]) -> set[tuple[str, str]]:
        """Return all spans that have one of these below them, as trace and id."""
        found: set[tuple[str, str]] = set()
        for span in spans:
            parent = self.of.get((span.trace, span.id))
            while parent and (span.trace, parent) not in found:
                found.add((span.trace, parent))
                parent = self.of.get((span.trace, parent))
        return found


@dataclass(slots=True)
class _OwnCall:
    """What headgate's spans say of one call. Times are in nanoseconds."""

    attributes: Attributes
    begun_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(slots=True)
class _OwnSpans:
    """headgate's spans, put together by call. They come in any order, and a call may be repeated."""

    by_call: dict[tuple[str, str], _OwnCall]

    def take(self, span: _Span, attributes: Attributes) -> None:
        key = span.trace, str(attributes["headgate.invocation"])
        call = self.by_call.setdefault(key, _OwnCall(attributes))
        if span.name == "waited":
            call.begun_ns = span.start_ns if call.begun_ns is None else min(call.begun_ns, span.start_ns)
        elif span.name == "queued":
            call.first_token_ns = max(call.first_token_ns or 0, span.end_ns)
        elif span.name == "dispatched" and attributes.get("headgate.outcome") == "finished":
            call.attributes, call.end_ns = attributes, span.end_ns
            call.input_tokens = _tokens(attributes, ("headgate.input_tokens",))
            call.output_tokens = _tokens(attributes, ("headgate.output_tokens",))

    def calls(self) -> Iterator[tuple[tuple[str, str], RecordedCall]]:
        """Yield the calls that ended, by trace and name."""
        for key, call in self.by_call.items():
            begun_ns, end_ns, first_ns = call.begun_ns, call.end_ns, call.first_token_ns
            if begun_ns is None or end_ns is None or call.input_tokens is None or call.output_tokens is None:
                continue
            is_known = first_ns is not None and begun_ns <= first_ns <= end_ns
            recorded = RecordedCall(
                begun_ns / NS_PER_S,
                str(call.attributes.get("headgate.tenant") or "all"),
                *("", str(call.attributes.get("headgate.model") or "")),
                *(str(call.attributes.get("headgate.tier") or ""), ""),
                *(call.input_tokens, call.output_tokens),
                ((first_ns or 0) - begun_ns) / NS_PER_S if is_known else None,
                max(0, end_ns - begun_ns) / NS_PER_S,
            )
            yield key, recorded
