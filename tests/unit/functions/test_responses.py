"""POST /v1/responses and the routes of kept responses: over real ASGI and a whole gate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.worker_protocol import Token
from dispatcher.operations.responses import REFERENCED_MAX
from tests.support.world.memory_gate import Gate
from tests.support.world.store_faults import FailsOnce
from tests.support.world.worker_client import WELL, Act, dies_after

PATH = "/v1/responses"
HOUR_S = 3600.0
CALLING = Act(
    pieces=(
        Token("", 0, delta={"reasoning": "hm"}),
        Token("", 0, delta={"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}),
    ),
    reason="tool_calls",
)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CAPABILITIES = ("chat", "completion", "reasoning", "tools")


@pytest.fixture(autouse=True)
async def able(gate: Gate) -> None:
    gate.add_worker(capabilities=CAPABILITIES)


def asks(items: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": items, "max_output_tokens": 3, **more}


def messages(gate: Gate) -> Any:
    """The messages that the worker got last."""
    return gate.workers.orders[-1][1].body["messages"]


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


async def test_a_streamed_response_ends_with_the_same_that_is_kept(gate: Gate) -> None:
    gate.workers.acts.append(CALLING)
    reply = await gate.caller().post(PATH, asks(stream=True, tools=[TOOL]))
    events = reply.semantic_events
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "function_call"]
    assert (await gate.caller().get(f"{PATH}/{final['id']}")).json() == final


async def test_a_conversation_goes_on_by_the_id_of_its_last_response(gate: Gate) -> None:
    caller = gate.caller()
    gate.workers.acts.extend([CALLING, WELL, WELL])
    first = (await caller.post(PATH, asks(tools=[TOOL], instructions="first"))).json()
    result = {"type": "function_call_output", "call_id": "c", "output": "7"}
    second = (await caller.post(PATH, asks([result], tools=[TOOL], previous_response_id=first["id"]))).json()
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        said("user", "hello"),
        {**said("assistant", ""), "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]
    assert messages(gate) == turns
    await caller.delete(f"{PATH}/{first['id']}")
    await caller.post(PATH, asks("and more", previous_response_id=second["id"]))
    assert messages(gate) == [*turns, said("assistant", "xxx"), said("user", "and more")]


async def test_items_are_referred_to_by_id(gate: Gate) -> None:
    caller = gate.caller()
    first = (await caller.post(PATH, asks())).json()
    item = first["output"][0]
    reference = {"type": "item_reference", "id": item["id"]}
    second = (await caller.post(PATH, asks([said("user", "hello"), reference, said("user", "more")]))).json()
    assert messages(gate) == [said("user", "hello"), said("assistant", "xxx"), said("user", "more")]
    await caller.delete(f"{PATH}/{first['id']}")
    again = {"type": "item_reference", "id": second["output"][0]["id"]}
    assert (await caller.post(PATH, asks([reference, again]))).status == 200  # the second response has the item too
    assert messages(gate) == [said("assistant", "xxx"), said("assistant", "xxx")]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"previous_response_id": "resp_p0-99"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"previous_response_id": "nonsense"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"items": [{"type": "item_reference", "id": "msg_p0-99_0"}]}, 404, "item_not_found", "input.0.id"),
        ({"items": [said("user", "x"), {"id": "msg_1"}]}, 404, "item_not_found", "input.1.id"),
        ({"max_output_tokens": 10_000_000}, 400, "invalid_value", "max_output_tokens"),
        ({"background": True}, 400, "unsupported_parameter", "background"),
        ({"tools": [{"type": "web_search"}]}, 400, "unsupported_parameter", "tools.0.type"),
    ],
)
async def test_a_refusal_names_the_field(
    gate: Gate, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    reply = await gate.caller().post(PATH, asks(**fields))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param)
    assert param in reply.error["message"].replace("tools.0", "tools.0.type")
    assert gate.workers.orders == []


async def test_another_tenants_response_is_as_unknown_as_none(gate: Gate) -> None:
    made = (await gate.caller("a").post(PATH, asks())).json()
    other = gate.caller("b")
    for path in (f"{PATH}/{made['id']}", f"{PATH}/{made['id']}/input_items", f"{PATH}/resp_p0-99", f"{PATH}/x%2f"):
        reply = await other.get(path)
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert "kept for 24 hours" in reply.error["message"]
    assert (await other.delete(f"{PATH}/{made['id']}")).status == 404
    refers = [{"type": "item_reference", "id": made["output"][0]["id"]}]
    assert (await other.post(PATH, asks(refers))).status == 404
    assert (await other.post(PATH, asks(previous_response_id=made["id"]))).status == 400
    assert (await gate.caller("a").get(f"{PATH}/{made['id']}")).status == 200


async def test_a_deleted_an_expired_and_an_unstored_response_are_gone(gate: Gate) -> None:
    caller = gate.caller()
    deleted, expired, unstored = [(await caller.post(PATH, asks(store=store))).json() for store in (True, None, False)]
    gone = await caller.delete(f"{PATH}/{deleted['id']}")
    assert gone.json() == {"id": deleted["id"], "object": "response", "deleted": True}
    assert unstored["store"] is False
    assert [(await caller.get(f"{PATH}/{each['id']}")).status for each in (deleted, expired, unstored)] == [
        404,
        200,
        404,
    ]
    await asyncio.sleep(24 * HOUR_S + 1)  # the store rounds up to whole seconds
    assert (await caller.get(f"{PATH}/{expired['id']}")).status == 404


async def test_input_items_come_in_pages_newest_first(gate: Gate) -> None:
    caller = gate.caller()
    first = (await caller.post(PATH, asks("zero"))).json()
    items = [said("user", f"{number}") for number in range(3)]
    made = (await caller.post(PATH, asks(items, previous_response_id=first["id"]))).json()

    async def page(query: str) -> Any:
        return (await caller.get(f"{PATH}/{made['id']}/input_items", query=query)).json()

    def texts(listed: Any) -> list[str]:
        return [item["content"][0]["text"] for item in listed["data"]]

    whole = await page("")
    assert (whole["object"], whole["has_more"], texts(whole)) == ("list", False, ["2", "1", "0", "xxx", "zero"])
    start = await page("limit=2&order=asc")
    assert (start["has_more"], texts(start)) == (True, ["zero", "xxx"])
    rest = await page(f"order=asc&after={start['last_id']}")
    assert (rest["has_more"], texts(rest)) == (False, ["0", "1", "2"])
    for query, param in (("limit=0", "limit"), ("order=up", "order"), ("after=x", "after"), ("stream=1", "stream")):
        reply = await caller.get(f"{PATH}/{made['id']}/input_items", query=query)
        assert (reply.status, reply.error["param"]) == (400, param)


async def test_what_cannot_be_kept_says_so(gate: Gate) -> None:
    full = gate.caller(context=gate.process(responses_bytes_max=100))
    off = gate.caller(context=gate.process(responses_kept_s=0.0))
    reasons = [(await caller.post(PATH, asks())).json() for caller in (full, off)]
    assert [each["store"] for each in reasons] == [False, False]
    assert "used up their space" in reasons[0]["not_stored_because"]
    assert "keeps no responses" in reasons[1]["not_stored_because"]
    streamed = (await full.post(PATH, asks(stream=True))).semantic_events[-1]["response"]
    assert "used up their space" in streamed["not_stored_because"]


async def test_an_answer_is_not_lost_when_the_store_fails(gate: Gate) -> None:
    gate.store.faults = FailsOnce("put RESP", applied=False)
    made = (await gate.caller().post(PATH, asks())).json()
    assert (made["store"], made["output"][0]["content"][0]["text"]) == (False, "xxx")
    gate.store.faults = FailsOnce("range RESP", applied=False)
    reply = await gate.caller().get(f"{PATH}/{made['id']}")
    assert (reply.status, reply.error["code"]) == (503, StoreUnavailable().code)


async def test_a_key_repeats_the_response(gate: Gate) -> None:
    caller = gate.caller()
    gate.workers.acts.append(CALLING)
    first = (await caller.post(PATH, asks(tools=[TOOL]), idempotency_key="k")).json()
    again = (await caller.post(PATH, asks(tools=[TOOL]), idempotency_key="k")).json()
    streamed = await caller.post(PATH, asks(tools=[TOOL], stream=True), idempotency_key="k")
    assert first == again == streamed.semantic_events[-1]["response"]
    assert len(gate.workers.orders) == 1
    other = await caller.post(PATH, asks("other", tools=[TOOL]), idempotency_key="k")
    assert (other.status, other.error["code"]) == (409, "idempotency_conflict")


async def test_a_late_failure_ends_the_stream_and_keeps_nothing(gate: Gate) -> None:
    gate.workers.acts.append(dies_after(1))
    events = (await gate.caller().post(PATH, asks(stream=True))).semantic_events
    failed = events[-1]
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert (await gate.caller().get(f"{PATH}/{failed['response']['id']}")).status == 404


async def test_a_caller_that_leaves_keeps_nothing(gate: Gate) -> None:
    gate.workers.acts.append(Act(token_s=10.0))
    call = gate.caller().start("POST", PATH, asks(stream=True))
    await asyncio.sleep(15.0)
    call.hang_up()
    await call.finished()
    assert gate.store.requests["put RESP"] == 0


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


async def test_references_cannot_make_a_small_request_huge(gate: Gate) -> None:
    caller = gate.caller()
    long = [thought("x" * 900_000), said("user", "short")]
    first = (await caller.post(PATH, asks(long))).json()
    assert first["store"] is True
    grown = await caller.post(PATH, asks(long, previous_response_id=first["id"]))
    assert (grown.status, grown.error["param"]) == (413, "input")
    listed = (await caller.get(f"{PATH}/{first['id']}/input_items")).json()["data"]
    name = next(item["id"] for item in listed if item["type"] == "reasoning")
    repeated = await caller.post(PATH, asks([{"type": "item_reference", "id": name}] * 4000))
    assert (repeated.status, repeated.error["code"]) == (413, "request_too_large")
    assert len(gate.workers.orders) == 1


async def test_a_request_reads_few_responses_for_its_references(gate: Gate) -> None:
    names = [f"msg_p0-{number}_0" for number in range(1000, 1100)]
    reply = await gate.caller().post(PATH, asks([{"type": "item_reference", "id": name} for name in names]))
    assert (reply.status, reply.error["code"]) == (404, "item_not_found")
    made = [(await gate.caller().post(PATH, asks())).json() for _ in range(REFERENCED_MAX + 1)]
    refers = [{"type": "item_reference", "id": each["output"][0]["id"]} for each in made]
    assert (await gate.caller().post(PATH, asks(refers[1:]))).status == 200
    reply = await gate.caller().post(PATH, asks(refers))
    assert (reply.status, reply.error["param"]) == (400, "input")
    assert f"more than {REFERENCED_MAX} responses" in reply.error["message"]
