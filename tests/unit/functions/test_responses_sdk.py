"""The unmodified openai client against POST /v1/responses: create, stream, parse, retrieve, list, delete."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.model.worker_protocol import Token
from tests.support.world.memory_gate import Gate
from tests.support.world.worker_client import Act

openai = pytest.importorskip("openai")
pytest.importorskip("httpx2")
from pydantic import BaseModel  # noqa: E402

from tests.support.world.sdk import client_of  # noqa: E402

CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city":'}}
MORE = {"index": 0, "function": {"arguments": '"Ulm"}'}}
CALLING = Act(
    pieces=(Token("", 0, delta={"tool_calls": [CALL]}), Token("", 0, delta={"tool_calls": [MORE]})), reason="tool_calls"
)
TOOL: Any = {
    "type": "function",
    "name": "f",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


CAPABILITIES = ("chat", "completion", "reasoning", "structured", "tools")


class City(BaseModel):
    name: str


@pytest.fixture(autouse=True)
async def able(gate: Gate) -> None:
    gate.add_worker(capabilities=CAPABILITIES)


@pytest.fixture
def client(gate: Gate) -> Any:
    return client_of(gate)


async def test_create_retrieve_list_and_delete(client: Any) -> None:
    made = await client.responses.create(model="m", input="hello", instructions="be brief", max_output_tokens=3)
    assert (made.output_text, made.status, made.usage.output_tokens) == ("xxx", "incomplete", 3)
    assert (await client.responses.retrieve(made.id)).output_text == "xxx"
    listed = [item async for item in client.responses.input_items.list(made.id, limit=1)]
    assert [item.content[0].text for item in listed] == ["hello"]
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="kept for 24 hours"):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel(made.id)


async def test_a_tool_two_turns_and_the_next_response(client: Any, gate: Gate) -> None:
    gate.workers.acts.append(CALLING)
    first = await client.responses.create(model="m", input="weather?", tools=[TOOL])
    (call,) = first.output
    assert (call.type, call.name, call.arguments) == ("function_call", "f", '{"city":"Ulm"}')
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = await client.responses.create(
        model="m", input=[result], previous_response_id=first.id, max_output_tokens=2
    )
    assert second.output_text == "xx"
    sent_back = [{"role": "user", "content": "weather?"}, *first.output, result]
    third = await client.responses.create(model="m", input=sent_back, store=False, max_output_tokens=2)
    assert third.output_text == "xx"
    orders = [order.body["messages"] for _, order in gate.workers.orders]
    assert orders[1] == orders[2]


async def test_the_clients_stream_helper_gets_the_final_response(client: Any, gate: Gate) -> None:
    gate.workers.acts.append(Act(pieces=(Token("He", 0), Token("llo", 0)), reason="stop"))
    async with client.responses.stream(model="m", input="hello") as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert (texts, final.output_text, final.status) == (["He", "llo"], "Hello", "completed")
    gate.workers.acts.append(CALLING)
    async with client.responses.stream(model="m", input="weather?", tools=[TOOL]) as stream:
        pieces = [event.delta async for event in stream if event.type == "response.function_call_arguments.delta"]
        final = await stream.get_final_response()
    assert pieces == ['{"city":', '"Ulm"}']
    assert final.output[0].parsed_arguments == {"city": "Ulm"}


async def test_parse_gives_an_object(client: Any, gate: Gate) -> None:
    gate.workers.acts.append(Act(pieces=(Token('{"name":', 0), Token('"Ulm"}', 0)), reason="stop"))
    parsed = await client.responses.parse(model="m", input="which city?", text_format=City)
    assert parsed.output_parsed == City(name="Ulm")
    form = gate.workers.orders[-1][1].body["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "City", True)


async def test_an_error_is_the_clients_own(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="m", input="hello", background=True)
    assert refused.value.param == "background"
    with pytest.raises(openai.BadRequestError, match="Send the conversation in `input`"):
        await client.responses.create(model="m", input="hello", previous_response_id="resp_p0-9")
