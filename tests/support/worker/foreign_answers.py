"""Answers of servers that speak another dialect of OpenAI's API, each with what the engine makes of it.

A kind is a body, and what becomes of it: the text, the finish reason, the calls, the charge and the other fields of the
message, or the error. All answers say "Hello" in two tokens after a prompt of seven, if nothing else stands there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.worker.openai_server import DONE, EVENTS, JSON, chunk, data, usage, usage_of

Call = tuple[str, str, str]
"""The id, the name and the arguments of a call. An id that the engine makes is written as "*"."""

ESTIMATED = 0
"""The engine's estimate of the prompt, because the server reports none."""
USAGE = usage(7, 2)
CHUNKED = {"transfer-encoding": "chunked"}
STOP = chunk(reason="stop")
CALLS = chunk(reason="tool_calls")
HELLO = (chunk("Hel"), chunk("lo"))
END = (STOP, USAGE, DONE)
A = ("c1", "a", '{"x":1}')
B = ("c2", "b", '{"y":2}')
EMPTY = ("c1", "a", "{}")
ONE_OBJECT = ("c1", "a", '{"x": 1}')
UNNAMED = tuple(("*", *each[1:]) for each in (A, B))
"""A and B with ids that the engine makes."""


@dataclass(frozen=True)
class Kind:
    """`body`: what the server sends, piece by piece. `status`: of its HTTP response.

    `error`: the code of the engine's error; empty for an answer. `fault`: the status that the error carries. `says`:
    its message. `rest`: the fields of the message beside its text and its calls.
    """

    name: str
    body: tuple[bytes, ...]
    status: int = 200
    media: str = EVENTS
    headers: dict[str, str] = field(default_factory=dict)
    text: str = "Hello"
    reason: str = "stop"
    calls: tuple[Call, ...] = ()
    tokens: tuple[int, int] = (7, 2)
    rest: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    fault: int | None = None
    says: str | None = None


def _failed(name: str, body: tuple[bytes, ...], **more: Any) -> Kind:
    return Kind(name, body, error="generation_failed", **more)


def _piece(delta: Any, **more: Any) -> bytes:
    """Return a chunk of the first choice."""
    return data({"choices": [{"index": 0, "delta": delta, **more}]})


def kinds() -> Iterator[Kind]:
    for each in (_framing, _texts, _reasons, _broken, _calls, _usage, _fields, _faults, _whole):
        yield from each()


def _lines(ending: bytes, field_name: bytes = b"data: ") -> bytes:
    body = b"".join([*HELLO, *END])
    return body.replace(b"data: ", field_name).replace(b"\n", ending)


def _framing() -> Iterator[Kind]:
    plain = b"".join([*HELLO, *END])
    yield Kind("LF", (plain,))
    yield Kind("CRLF", (_lines(b"\r\n"),))
    yield Kind("CR", (_lines(b"\r"),))
    yield Kind("byte by byte with CRLF", tuple(_lines(b"\r\n")[at : at + 1] for at in range(len(_lines(b"\r\n")))))
    yield Kind("a byte order mark", (b"\xef\xbb\xbf" + plain,))
    yield Kind("a byte order mark in pieces", (b"\xef", b"\xbb", b"\xbf" + plain))
    yield Kind("no space after the colon", (_lines(b"\n", b"data:"),))
    yield Kind("comments, ids and other fields", (b": ping\n\n:\n\nevent: message\nid: 3\nretry: 10\n" + plain,))
    yield Kind("empty lines first", (b"\n\n  \n" + plain,))
    yield Kind("no empty lines", (plain.replace(b"\n\n", b"\n"),))
    pretty = json.dumps({"choices": [{"index": 0, "delta": {"content": "Hello"}}]}, indent=1)
    yield Kind("an event on several lines", (b"data: " + pretty.replace("\n", "\ndata: ").encode() + b"\n\n", *END))
    yield Kind("a media type in capitals", (plain,), media="Text/Event-Stream;Charset=UTF-8")
    yield Kind("events under the media type of JSON", (plain,), media=JSON)
    yield Kind("three ends", (plain, DONE, DONE))
    yield Kind("an end in small letters", (*HELLO, STOP, USAGE, b"data: [done]\n\n"))
    yield Kind("events named ping", (b'event: ping\ndata: {"type": "ping"}\n\n' + plain,))


def _texts() -> Iterator[Kind]:
    emoji = 'data: {"choices": [{"index": 0, "delta": {"content": "é😀中"}}]}\n\n'.encode()
    yield Kind(
        "characters split between pieces", (*(emoji[at : at + 1] for at in range(len(emoji))), *END), text="é😀中"
    )
    yield Kind("a pair in two chunks", (chunk("A\ud83d"), chunk("\ude00B"), *END), text="A😀B")
    yield Kind(
        "a pair in two chunks with another field between",
        (chunk("\ud83d"), chunk(reasoning="x"), chunk("\ude00"), *END),
        text="😀",
        rest={"reasoning": "x"},
    )
    yield Kind("half a pair at the end", (chunk("A\ud83d"), *END), text="A\ufffd")
    yield Kind("the second half alone", (chunk("\ude00B"), *END), text="\ufffdB")
    yield Kind(
        "a pair of the reasoning",
        (chunk(reasoning_content="\ud83d"), chunk("Hello", reasoning_content="\ude00"), *END),
        rest={"reasoning_content": "😀"},
    )
    yield Kind("halves as bytes", (emoji.replace("😀".encode(), b"\xed\xa0\xbd\xed\xb8\x80"), *END), text="é😀中")
    yield Kind("a byte that is no UTF-8", (emoji.replace("é".encode(), b"\xff"), *END), text="\ufffd😀中")
    yield Kind("content as parts", (chunk(None, content=[{"type": "text", "text": "Hel"}, "lo"]), *END))
    yield Kind("content as one part", (chunk(None, content={"text": "Hello"}), *END))
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Hello"}]
    yield Kind("thinking among the parts", (chunk(None, content=thinking), *END), rest={"reasoning_content": "hm"})
    yield Kind("null and line separators", (chunk("a\0b\u2028c"), *END), text="a\0b\u2028c")
    yield Kind("the role in each chunk", (chunk("Hel", role="assistant"), chunk("lo", role="assistant"), *END))
    yield Kind("an empty answer", (chunk("", role="assistant"), STOP, usage(7, 1), DONE), text="", tokens=(7, 1))


def _reasons() -> Iterator[Kind]:
    def ended(reason: Any, becomes: str) -> Kind:
        return Kind(f"the finish reason {reason!r}", (*HELLO, chunk(reason=reason), USAGE, DONE), reason=becomes)

    for reason in (
        "eos",
        "eos_token",
        "end_turn",
        "END_TURN",
        "stop_sequence",
        "STOP",
        "COMPLETE",
        "unknown",
        "null",
        "",
    ):
        yield ended(reason, "stop")
    for reason in ("max_tokens", "MAX_TOKENS", "model_length", "maxOutputTokens", "cut_by_length_rule"):
        yield ended(reason, "length")
    for reason in ("SAFETY", "content_filtered", "guardrail_intervened", "sensitive"):
        yield ended(reason, "content_filter")
    yield ended("something new", "stop")
    yield ended("tool_use", "tool_calls")
    yield ended({"type": "stop"}, "stop")
    yield ended(7, "stop")
    call = chunk(tool_calls=[_call(0, *A)])
    ended_so = (call, chunk(reason="weird"), USAGE, DONE)
    yield Kind("an unknown reason after calls", ended_so, text="", reason="tool_calls", calls=(A,))
    yield Kind("no reason, and the end", (*HELLO, USAGE, DONE))
    yield Kind("no reason, and the usage", (*HELLO, USAGE))
    yield Kind("no reason after calls", (call, DONE), text="", reason="tool_calls", calls=(A,), tokens=(ESTIMATED, 1))
    yield Kind("no reason, and the end of the body", HELLO, headers=CHUNKED, tokens=(ESTIMATED, 2))
    yield Kind('"null" in each chunk', (chunk("Hel", reason="null"), chunk("lo", reason="null"), *END))
    yield Kind(
        "finish_details", (*HELLO, _piece({}, finish_details={"type": "max_tokens"}), USAGE, DONE), reason="length"
    )
    yield Kind("a reason twice", (*HELLO, STOP, *END))
    yield Kind("a reason before the rest of the text", (chunk("Hel", reason="stop"), chunk("lo"), USAGE, DONE))


def _broken() -> Iterator[Kind]:
    for reason in ("error", "abort", "cancelled", "CANCELED", "network_error"):
        yield _failed(f"the server gives up: {reason}", (*HELLO, chunk(reason=reason), USAGE, DONE))
    yield Kind(
        "no resources",
        (*HELLO, chunk(reason="insufficient_system_resource"), USAGE, DONE),
        error="engine_overloaded",
        fault=503,
    )
    yield _failed("cut off", HELLO)
    piece = chunk(tool_calls=[_call(0, "c1", "a", '{"x":')])
    yield _failed("cut off within a call", (piece,), headers=CHUNKED)
    yield _failed("only the end", (DONE,))
    yield _failed("an empty body", (b"",))
    yield _failed("no content", (b"",), status=204, media=JSON)
    yield _failed("compressed", (b"\x1f\x8b\x08",), headers={"content-encoding": "gzip"})
    yield _failed("a picture", (chunk(None, content=[{"type": "image_url", "image_url": {}}]), *END))


def _call(index: Any, call_id: Any = None, name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    kind = "function" if call_id or name else None
    given = {"index": index, "id": call_id, "type": kind, "function": function, **more}
    return {key: value for key, value in given.items() if value is not None}


def _called(name: str, *items: Any, calls: tuple[Call, ...] = (A, B), **more: Any) -> Kind:
    sent = tuple(chunk(tool_calls=each if isinstance(each, list) else [each]) for each in items)
    return Kind(name, (*sent, CALLS, USAGE, DONE), text="", reason="tool_calls", calls=calls, **more)


def _calls() -> Iterator[Kind]:
    yield _called(
        "calls in pieces", _call(0, "c1", "a", ""), _call(0, arguments='{"x":'), _call(0, arguments="1}"), _call(1, *B)
    )
    yield _called("no index", _call(None, *A), _call(None, *B))
    yield _called("no index in one chunk", [_call(None, *A), _call(None, *B)])
    yield _called("no index, in pieces", _call(None, "c1", "a", '{"x":'), _call(None, arguments="1}"), calls=(A,))
    null = {**_call(0, *A), "index": None}
    yield _called("a null index", null, {**_call(0, *B), "index": None})
    yield _called("an index as text", _call("0", *A), _call("1", *B))
    yield _called("a reused index", _call(0, *A), _call(0, *B))
    yield _called("a reused index without ids", _call(0, None, *A[1:]), _call(0, None, *B[1:]), calls=UNNAMED)
    yield _called("a reused id", _call(0, *A), _call(1, "c1", *B[1:]), calls=(A, ("c1_1", *B[1:])))
    yield _called("another id for each piece", _call(0, "c1", "a", '{"x":'), _call(0, "zz", None, "1}"), calls=(A,))
    yield _called("an id of another kind", _call(0, 17, *A[1:]), calls=(("17", *A[1:]),))
    yield _called("a very long id", _call(0, "x" * 1000, *A[1:]), calls=(("*", *A[1:]),))
    yield _called("no ids", _call(0, None, *A[1:]), _call(1, None, *B[1:]), calls=UNNAMED)
    yield _called(
        "the same call twice, without ids",
        _call(0, None, *A[1:]),
        _call(1, None, *A[1:]),
        calls=(("*", *A[1:]), ("*", *A[1:])),
    )
    empty = {"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": "1}"}}
    yield _called("an empty id and name in later pieces", _call(0, "c1", "a", '{"x":'), empty, calls=(A,))
    yield _called(
        "the id and the name again in later pieces", _call(0, "c1", "a", '{"x":'), _call(0, "c1", "a", "1}"), calls=(A,)
    )
    yield _called(
        "the whole call again at the end",
        _call(0, "c1", "a", '{"x":'),
        _call(0, arguments="1}"),
        _call(0, *A),
        calls=(A,),
    )
    yield _called(
        "the name in pieces",
        _call(0, "c1", "get_"),
        _call(0, None, "weather"),
        _call(0, arguments="{}"),
        calls=(("c1", "get_weather", "{}"),),
    )
    yield _called("arguments as an object", _call(0, "c1", "a", {"x": 1}), calls=(ONE_OBJECT,))
    yield _called(
        "null arguments", {"index": 0, "id": "c1", "function": {"name": "a", "arguments": None}}, calls=(EMPTY,)
    )
    yield _called("no arguments", _call(0, "c1", "a"), calls=(EMPTY,))
    yield _called(
        "a pair in the arguments",
        _call(0, "c1", "a", '{"x":"\ud83d'),
        _call(0, arguments='\ude00"}'),
        calls=(("c1", "a", '{"x":"😀"}'),),
    )
    yield _called(
        "a call that is no list",
        {"index": 0, "id": "c1", "type": "function", "name": "a", "arguments": {}},
        calls=(EMPTY,),
    )
    yield _called(
        "Anthropic's form", {"type": "tool_use", "id": "c1", "name": "a", "input": {"x": 1}}, calls=(ONE_OBJECT,)
    )
    long = json.dumps({"x": "y" * 300_000})
    yield _called("long arguments", _call(0, "c1", "a", long), calls=(("c1", "a", long),))
    pieces = (chunk(function_call={"name": "a", "arguments": '{"x":'}), chunk(function_call={"arguments": "1}"}))
    yield Kind(
        "function_call",
        (*pieces, chunk(reason="function_call"), USAGE, DONE),
        text="",
        reason="tool_calls",
        calls=(("*", *A[1:]),),
    )
    yield Kind("calls that end with stop", (chunk(tool_calls=[_call(0, *A)]), *END), text="", calls=(A,))
    unnamed = chunk(tool_calls=[_call(0, "c1", None, "{}")])
    yield _failed("a call without a name", (unnamed, CALLS, DONE))
    yield _failed("calls that are no calls", (chunk(tool_calls=["x"]), CALLS, DONE))


def _usage() -> Iterator[Kind]:
    yield Kind("usage without choices", (*HELLO, STOP, data({"usage": usage_of(7, 2)}), DONE))
    yield Kind("usage with null choices", (*HELLO, STOP, data({"choices": None, "usage": usage_of(7, 2)}), DONE))
    yield Kind("usage with an empty delta", (*HELLO, STOP, chunk(usage=(7, 2)), DONE))
    yield Kind("usage as floats", (*HELLO, STOP, usage(7.0, 2.0), DONE))
    yield Kind("null usage", (*HELLO, STOP, data({"choices": [], "usage": None}), DONE), tokens=(ESTIMATED, 2))
    yield Kind(
        "NaN as usage",
        (*HELLO, STOP, b'data: {"usage": {"prompt_tokens": NaN, "completion_tokens": NaN}}\n\n', DONE),
        tokens=(ESTIMATED, 2),
    )
    yield Kind("usage of zero", (*HELLO, STOP, usage(0, 0), DONE), tokens=(ESTIMATED, 2))
    yield Kind(
        "usage of zero for sixteen pieces",
        (*(chunk("word ") for _ in range(16)), STOP, usage(0, 0), DONE),
        text="word " * 16,
        tokens=(ESTIMATED, 16),
    )
    yield Kind("usage of zero on the way", (chunk("Hel", usage=(7, 0)), chunk("lo", usage=(7, 0)), STOP, DONE))
    yield Kind("early usage", (usage(7, 0), *HELLO, *END))
    yield Kind("early usage alone", (usage(7, 0), *HELLO, STOP, DONE))
    yield Kind("other names", (*HELLO, STOP, data({"usage": {"input_tokens": 7, "output_tokens": 2}}), DONE))
    yield Kind("only the total", (*HELLO, STOP, data({"usage": {"prompt_tokens": 7, "total_tokens": 9}}), DONE))
    yield Kind("usage of Groq", (*HELLO, STOP, data({"choices": [], "x_groq": {"usage": usage_of(7, 2)}}), DONE))
    inside = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage_of(7, 2)}
    yield Kind("usage in the choice", (*HELLO, data({"choices": [inside]}), DONE))
    many = tuple(chunk(each) for each in "abcdefghijkl")
    yield Kind("fewer tokens than pieces", (*many, STOP, usage(7, 9), DONE), text="abcdefghijkl", tokens=(7, 9))


def _fields() -> Iterator[Kind]:
    yield Kind("filter results first", (data({"choices": [], "prompt_filter_results": [{}]}), *HELLO, *END))
    yield Kind("a null delta", (_piece(None), *HELLO, *END))
    yield Kind("a null choice", (data({"choices": [None]}), *HELLO, *END))
    yield Kind("no index of the choice", (data({"choices": [{"delta": {"content": "Hello"}}]}), *END))
    yield Kind(
        "an index of the choice as text", (data({"choices": [{"index": "0", "delta": {"content": "Hello"}}]}), *END)
    )
    yield Kind("an empty error", (data({"error": {"code": 0, "message": ""}, "choices": []}), *HELLO, *END))
    nulls: dict[str, Any] = dict.fromkeys(("tool_calls", "function_call", "refusal", "audio", "role"))
    yield Kind("nulls everywhere", (chunk(None, content=None, **nulls), chunk("Hello", tool_calls=[]), *END))
    yield Kind(
        "reasoning",
        (chunk(None, content=None, reasoning_content="Th"), chunk(reasoning_content="ink"), *HELLO, *END),
        rest={"reasoning_content": "Think"},
    )
    yield Kind("reasoning under the other name", (chunk(reasoning="Think"), *HELLO, *END), rest={"reasoning": "Think"})
    details = [{"type": "reasoning.text", "text": "why", "format": "unknown", "index": 0}]
    yield Kind(
        "reasoning_details", (chunk(reasoning_details=details), *HELLO, *END), rest={"reasoning_details": details}
    )
    twice = [{**details[0], "text": "wh"}], [{**details[0], "text": "y"}]
    yield Kind(
        "reasoning_details in pieces",
        (*(chunk(reasoning_details=each) for each in twice), *HELLO, *END),
        rest={"reasoning_details": details},
    )
    notes = [
        {"type": "url_citation", "url_citation": {"url": "http://x", "title": "t", "start_index": 0, "end_index": 1}}
    ]
    yield Kind("annotations", (chunk("Hello", annotations=notes), *END), rest={"annotations": notes})
    yield Kind("citations", (chunk("Hello", citations=["http://x"]), *END), rest={"citations": ["http://x"]})
    yield Kind("a refusal", (chunk(refusal="No."), *END), text="", rest={"refusal": "No."})
    audio = {"id": "a", "data": "AA==", "transcript": "x"}
    yield Kind("audio", (chunk("Hello", audio=audio), *END), rest={"provider_specific_fields": {"audio": audio}})
    yield Kind(
        "an unknown field",
        (chunk("Hello", vendor={"x": 1}), *END),
        rest={"provider_specific_fields": {"vendor": {"x": 1}}},
    )
    yield Kind(
        "an unknown field beside the choice's",
        (data({"choices": [{"index": 0, "delta": {"content": "Hello"}, "x": 1}], "y": 2}), *END),
    )
    yield Kind("a deep field", (chunk("Hello", x=json.loads("[" * 60 + "]" * 60)), *END))
    yield Kind(
        "a field that is not finite",
        (b'data: {"choices": [{"index": 0, "delta": {"content": "Hello", "x": [NaN, 1e999, 1]}}]}\n\n', *END),
        rest={"provider_specific_fields": {"x": [None, None, 1]}},
    )
    signed = {"google": {"thought_signature": "s"}}
    yield _called("extra_content of a call", _call(0, "c1", "a", "{}", extra_content=signed), calls=(EMPTY,))
    yield _called("an unknown field of a call", _call(0, "c1", "a", "{}", vendor=1), calls=(EMPTY,))


def _faults() -> Iterator[Kind]:
    bad = {"message": "bad thing", "type": "BadRequestError", "code": 400}

    def fault(
        name: str,
        *body: bytes,
        error: str = "invalid_request",
        says: str | None = "bad thing",
        fault: int = 400,
        **more: Any,
    ) -> Kind:
        return Kind(name, body, error=error, says=says, fault=fault, **more)

    def http(name: str, status: int, payload: Any, **more: Any) -> Kind:
        media = JSON if not isinstance(payload, str) else "text/plain"
        body = payload if isinstance(payload, str) else json.dumps(payload)
        return fault(name, body.encode(), status=status, media=media, **{"fault": status, **more})

    yield fault("an error after text", chunk("Hel"), data({"error": bad}), DONE)
    yield fault("an error first", data({"error": bad}), DONE)
    yield fault("a code as text", data({"error": {**bad, "type": "x", "code": "400"}}), DONE)
    yield fault("a code as a float", data({"error": {**bad, "code": 400.0}}), DONE)
    yield fault("a code as a word", data({"error": {"message": "bad thing", "code": "invalid_value"}}), DONE)
    yield fault("a type as a class", data({"error": {"message": "bad thing", "type": "BadRequestError"}}), DONE)
    yield fault("a status of Google", data([{"error": {"message": "bad thing", "status": "INVALID_ARGUMENT"}}]), DONE)
    yield fault(
        "an error of Anthropic",
        b"event: error\n" + data({"type": "error", "error": {"type": "invalid_request_error", "message": "bad thing"}}),
    )
    yield fault("an error event", b"event: error\n" + data({"message": "bad thing", "code": 400}))
    yield fault(
        "an error event in capitals with CR",
        b"event: ERROR\r" + data({"message": "bad thing", "code": 400}).replace(b"\n", b"\r"),
    )
    yield fault(
        "an error event of text", b"event: error\ndata: boom\n\n", error="generation_failed", says=None, fault=500
    )
    yield fault("an error as text", b"data: [ERROR] boom\n\n", DONE, error="generation_failed", says=None, fault=500)
    yield fault("an error at top level", data({"object": "error", **bad}), DONE)
    yield fault("an error in detail", data({"detail": {"message": "bad thing", "code": 400}}), DONE)
    yield fault("an error in the choice", _piece({}, finish_reason="error", error=bad), DONE)
    long = "This model's maximum context length is 10 tokens"
    yield fault(
        "too long, by the code",
        data({"error": {"message": "no", "code": "context_length_exceeded"}}),
        error="context_length_exceeded",
        says="no",
    )
    yield fault(
        "too long, by the text",
        data({"error": {"message": long, "code": "context_length_exceeded"}}),
        error="context_length_exceeded",
        says=long,
    )
    yield fault(
        "overloaded within the answer",
        data({"error": {"message": "x", "type": "overloaded_error"}}),
        error="engine_overloaded",
        says=None,
        fault=503,
    )
    yield fault(
        "a rate limit within the answer",
        data({"error": {"message": "x", "code": "rate_limit_exceeded"}}),
        error="engine_overloaded",
        says=None,
        fault=429,
    )
    yield fault(
        "JSON with status 200", json.dumps({"error": {"message": "bad thing", "code": 400}}).encode(), media=JSON
    )
    yield fault("JSON at top level with status 200", json.dumps({"object": "error", **bad}).encode(), media=JSON)
    yield http("400 with text", 400, "bad thing")
    yield http("400 with HTML", 400, "<html>bad thing</html>", says="the engine refused the request as invalid")
    yield http(
        "400 of FastAPI",
        400,
        {"detail": [{"loc": ["body", "x"], "msg": "field required", "type": "value_error"}]},
        says="x: field required",
    )
    yield http("400 at top level", 400, {"object": "error", **bad})
    yield http("413", 413, {"error": {"message": "bad thing"}})
    yield http("422 of FastAPI", 422, {"detail": "bad thing"})
    leak = "backend http://10.0.0.7:8000/v1 key sk-secret-123 refused"
    yield http(
        "400 with an address and a key", 400, {"error": {"message": leak}}, says="backend [address] key [key] refused"
    )
    context = "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
    yield http(
        "400 of llama.cpp",
        400,
        {"error": {"code": 400, "message": context, "type": "exceed_context_size_error"}},
        error="context_length_exceeded",
        says=context,
    )
    limit = "max_tokens=5000 cannot be greater than max_model_len=1024"
    yield http(limit, 400, {"error": {"message": limit}}, error="context_length_exceeded", says=limit)
    for status, code in (
        (302, "generation_failed"),
        (401, "generation_failed"),
        (404, "generation_failed"),
        (429, "engine_overloaded"),
        (503, "engine_overloaded"),
        (500, "generation_failed"),
        (502, "generation_failed"),
    ):
        yield http(f"{status}", status, {"error": {"message": "canary sk-secret-123"}}, error=code, says=None)


def _body(*choices: Any, **more: Any) -> dict[str, Any]:
    spent = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    return {"id": "x", "object": "chat.completion", "choices": list(choices), "usage": spent, **more}


def _message(content: Any, reason: Any = "stop", **more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": content, **more}, "finish_reason": reason}


def _whole() -> Iterator[Kind]:
    def whole(name: str, body: Any, media: str = JSON, indent: int | None = None, **more: Any) -> Kind:
        return Kind(name, (json.dumps(body, indent=indent).encode(),), media=media, **more)

    hello = _body(_message("Hello"))
    yield whole("JSON", hello)
    yield whole("JSON in capitals", hello, "Application/JSON; charset=UTF-8")
    yield whole("JSON as text", hello, "text/plain")
    yield whole("JSON as text on several lines", hello, "text/plain", 1)
    yield whole("JSON with the status 201", hello, status=201)
    yield whole("JSON in a list", [hello])
    yield whole("JSON without usage counts by its text", {**hello, "usage": None}, tokens=(ESTIMATED, 2))
    yield whole("JSON with a foreign reason", _body(_message("Hello", "EOS")))
    lines = b"".join(
        json.dumps({"choices": [{"index": 0, "delta": {"content": each}}]}).encode() + b"\n" for each in ("Hel", "lo")
    )
    end = (
        json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        + "\n"
        + json.dumps({"usage": hello["usage"]})
    )
    yield Kind("a line of JSON for each chunk", (lines + end.encode(),), media="application/x-ndjson")
    function = [
        {"id": each[0], "type": "function", "function": {"name": each[1], "arguments": each[2]}} for each in (A, B)
    ]
    yield whole(
        "JSON with calls",
        _body(_message(None, "tool_calls", tool_calls=function)),
        text="",
        reason="tool_calls",
        calls=(A, B),
    )
    objects = [{"function": {"name": "a", "arguments": {"x": 1}}}, {"function": {"name": "a", "arguments": {"x": 1}}}]
    yield whole(
        "JSON with calls as objects",
        _body(_message("", "stop", tool_calls=objects)),
        text="",
        calls=(("*", "a", '{"x": 1}'),) * 2,
    )
    extra: dict[str, Any] = {
        "function_call": None,
        "tool_calls": [],
        "reasoning_content": "w",
        "provider_specific_fields": {"citations": None},
    }
    yield whole(
        "JSON with other fields",
        _body(_message("Hello", vendor={"x": 1}, **extra)),
        rest={"reasoning_content": "w", "provider_specific_fields": {"citations": None, "vendor": {"x": 1}}},
    )
