"""A chat's second turn at the functions: what the gate's own answer brings back, and what of it the worker receives."""

from __future__ import annotations

from typing import Any

from functions.invoke.handler import invoke
from tests.support.world.memory_gate import CHAT, Gate

FIRST = {"role": "user", "content": "hello"}
AGAIN = {"role": "user", "content": "and more"}
DUMPED = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
"""What the OpenAI SDK's `model_dump()` adds to a message."""
NEUTRAL = {"tool_choice": "auto", "tools": None, "n": 1, "frequency_penalty": 0, "logprobs": False, "user": "u"}
TURNS = [FIRST, {"role": "assistant", "content": "xxx"}, AGAIN]


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [*messages], "max_tokens": 3, **more}


async def test_the_answers_message_goes_back_over_http(gate: Gate) -> None:
    first_message = (await gate.caller().post(CHAT, body(FIRST))).json()["choices"][0]["message"]
    reply = await gate.caller().post(CHAT, body(FIRST, {**DUMPED, **first_message}, AGAIN, **NEUTRAL))
    assert reply.status == 200
    assert gate.workers.orders[-1][1].body["messages"] == TURNS


async def test_what_engines_add_to_an_answer_goes_back(gate: Gate) -> None:
    signed = {"google": {"thought_signature": "s"}}
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": function, "extra_content": signed, "index": 0}
    added = {
        "reasoning_details": [{"type": "reasoning.text", "text": "why"}],
        "citations": ["x"],
        "extra_content": signed,
        "cache_control": {"type": "ephemeral"},
        "provider_specific_fields": {"x": 1},
    }
    message = {**DUMPED, "role": "assistant", "content": "", "refusal": "No.", "tool_calls": [call], **added}
    marked = [{**each, "cache_control": {"type": "ephemeral"}} for each in (FIRST, AGAIN)]
    result = {"role": "tool", "tool_call_id": "c", "content": "1"}
    gate.add_worker("w", capabilities=("chat", "tools"))
    reply = await gate.caller().post(CHAT, body(marked[0], message, result, marked[1]))
    assert reply.status == 200, reply.error
    kept = {"role": "assistant", "content": "", "refusal": "No."}
    plain = {**kept, "tool_calls": [{name: call[name] for name in ("id", "type", "function")}]}
    assert gate.workers.orders[-1][1].body["messages"] == [FIRST, plain, result, AGAIN]


async def test_neutral_fields_are_no_other_request_under_the_same_key(gate: Gate) -> None:
    caller, first_message = gate.caller(), {"role": "assistant", "content": "xxx"}
    first = await caller.post(CHAT, body(FIRST, first_message, AGAIN), idempotency_key="k")
    again = await caller.post(CHAT, body(FIRST, {**DUMPED, **first_message}, AGAIN, **NEUTRAL), idempotency_key="k")
    assert (again.status, again.json()) == (200, first.json())
    assert len(gate.workers.orders) == 1


async def test_a_refusal_names_the_messages_field_over_both(gate: Gate) -> None:
    bad = body(FIRST, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, AGAIN)
    reply = await gate.caller().post(CHAT, bad)
    payload = await invoke(gate.context, {**bad, "api_key": gate.keys["a"]}, "r-1", 60.0)
    assert (reply.status, payload["status"]) == (400, 400)
    assert reply.error == payload["error"]
    assert reply.error["param"] == "messages.1.function_call"
    assert reply.error["message"].endswith("leave it out or send null or {}. Use `tool_calls`.")
