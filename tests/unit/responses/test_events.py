"""The events of a response: the openai SDK's types accept each, and its accumulator gets the final response."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.model.errors import Refused, WorkerFailed
from dispatcher.model.worker_protocol import Finished, Token
from dispatcher.responses.answer import ResponseEvents, ResponseHead
from dispatcher.responses.request import parse_asked

pytest.importorskip("openai")
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "f"}


def call(index: int, arguments: str, name: str = "", call_id: str = "") -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, "function": function, **({"id": call_id} if call_id else {})}]}


def built(*tokens: Token, reason: str = "stop", **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return all events and the final response, both valid by the SDK's types."""
    asked = parse_asked({"model": "m", "input": "hi", "tools": [TOOL], **more})
    events = ResponseEvents(ResponseHead("p-7", 1000, "m", asked))
    made = events.opening()
    for token in tokens:
        made += events.token(token)
    made += events.finish(Finished(reason, 10, len(tokens)))
    made += events.last()
    for each in made:
        EVENT.validate_python(each)
    assert [each["sequence_number"] for each in made] == list(range(len(made)))
    Response.model_validate(events.final)
    assert made[-1]["response"] == events.final
    return made, events.final


def types(events: list[dict[str, Any]]) -> list[str]:
    return [each["type"].removeprefix("response.") for each in events]


def test_a_text() -> None:
    events, final = built(Token("he", 1), Token("llo", 2))
    assert types(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    assert events[2]["item"]["content"] == []
    (message,) = final["output"]
    assert (message["id"], message["status"], message["content"][0]["text"]) == ("msg_p-7_0", "completed", "hello")
    assert (final["id"], final["usage"]["input_tokens"], final["usage"]["total_tokens"]) == ("resp_p-7", 10, 12)


def test_reasoning_then_text_then_calls_that_arrive_in_turn() -> None:
    pieces = (
        Token("", 1, delta={"reasoning": "hm"}),
        Token("", 2, delta={"reasoning_content": "m"}),
        Token("I call", 3),
        Token("", 4, delta=call(0, "", "f", "c0")),
        Token("", 5, delta=call(0, '{"a":')),
        Token("", 6, delta=call(1, "{", "g", "c1")),
        Token("", 7, delta=call(0, "1}")),
        Token("", 8, delta=call(1, "}")),
    )
    events, final = built(*pieces, reason="tool_calls")
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert final["output"][0]["content"] == [{"type": "reasoning_text", "text": "hmm"}]
    calls = [(each["call_id"], each["name"], each["arguments"]) for each in final["output"][2:]]
    assert calls == [("c0", "f", '{"a":1}'), ("c1", "g", "{}")]
    assert {item["status"] for item in final["output"]} == {"completed"}
    added = [each["output_index"] for each in events if each["type"] == "response.output_item.added"]
    assert added == [0, 1, 2, 3]
    assert events[-1]["type"] == "response.completed"


def test_a_whole_answer_in_one_piece_is_the_same_response() -> None:
    delta = {"reasoning": "hmm", "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    _, whole = built(Token("text", 1, delta=delta))
    _, pieces = built(
        Token("", 1, delta={"reasoning": "hmm"}), Token("text", 1), Token("", 1, delta=call(0, "{}", "f", "c"))
    )
    assert whole["output"] == pieces["output"]


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    _, final = built(Token("", 1, delta=call(0, "{}", "f", "c")), Token("done", 2))
    assert [item["type"] for item in final["output"]] == ["function_call", "message"]


def test_an_answer_that_is_cut_is_incomplete() -> None:
    events, final = built(Token("x", 1), reason="length")
    assert events[-1]["type"] == "response.incomplete"
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert final["output"][0]["status"] == "incomplete"


def test_an_empty_answer_has_an_empty_message() -> None:
    _, final = built()
    assert [(item["type"], item["content"]) for item in final["output"]] == [("message", [])]


def test_a_refusal_is_a_part_of_the_message() -> None:
    _, final = built(Token("so", 1), Token("", 2, delta={"refusal": "n"}), Token("", 3, delta={"refusal": "o"}))
    parts = final["output"][0]["content"]
    assert [part["type"] for part in parts] == ["output_text", "refusal"]
    assert parts[1]["refusal"] == "no"


def test_log_probabilities_are_in_the_events_and_in_the_response() -> None:
    top = {"token": "y", "logprob": -2.0, "bytes": None}
    logprob = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": [top]}
    events, final = built(Token("x", 1, logprobs={"content": [logprob]}))
    delta = next(each for each in events if each["type"] == "response.output_text.delta")
    assert delta["logprobs"] == [{"token": "x", "logprob": -0.5, "top_logprobs": [{"token": "y", "logprob": -2.0}]}]
    assert final["output"][0]["content"][0]["logprobs"][0]["bytes"] == [120]


def test_a_call_without_an_id_gets_one() -> None:
    _, final = built(Token("", 1, delta=call(0, "{}", "f")))
    assert final["output"][0]["call_id"] == "call_p-7_0"


@pytest.mark.parametrize(
    ("error", "code"),
    [(WorkerFailed(), "server_error"), (Refused("Too much.", "overloaded", 7.0), "rate_limit_exceeded")],
)
def test_a_failure_ends_the_stream(error: Any, code: str) -> None:
    events = ResponseEvents(ResponseHead("p-7", 1000, "m", parse_asked({"model": "m", "input": "hi"})))
    made = [*events.opening(), *events.token(Token("half", 1)), *events.failed(error)]
    for each in made:
        EVENT.validate_python(each)
    failed = made[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": code, "message": error.message}
    assert failed["response"]["output"][0]["content"][0]["text"] == "half"
