"""The official openai SDK: chat, streams, tools, structured output, responses, embeddings."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from steps import MODEL, run

QUESTION = {"role": "user", "content": "What is the weather like in Paris today?"}
PARAMETERS = {
    "type": "object",
    "properties": {"location": {"type": "string", "description": "City and country"}},
    "required": ["location"],
    "additionalProperties": False,
}
DESCRIPTION = "Get the current temperature of a location."
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS, "strict": True},
}
RESPONSES_TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": DESCRIPTION,
    "parameters": PARAMETERS,
    "strict": True,
}


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


def models() -> None:
    assert MODEL in [model.id for model in OpenAI().models.list()]


def chat() -> None:
    completion = OpenAI().chat.completions.create(model=MODEL, messages=[QUESTION])
    assert completion.choices[0].message.content
    assert completion.usage
    assert completion.usage.total_tokens > 0


async def asynchronous_chat() -> None:
    async with AsyncOpenAI() as client:
        completion = await client.chat.completions.create(model=MODEL, messages=[QUESTION])
    assert completion.choices[0].message.content


def streamed_chat() -> None:
    chunks = list(_stream([QUESTION]))
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens > 0


def _stream(messages: list[Any], **fields: Any) -> Any:
    return OpenAI().chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, **fields
    )


def second_turn() -> None:
    client, messages = OpenAI(), [QUESTION]
    for question in ("And in Rome?", ""):
        completion = client.chat.completions.create(model=MODEL, messages=messages)
        message = completion.choices[0].message
        assert message.content
        messages += [message, {"role": "user", "content": question}]


def sampling_and_choices() -> None:
    completion = OpenAI().chat.completions.create(
        model=MODEL, messages=[QUESTION], n=2, temperature=0.7, top_p=0.9, frequency_penalty=0.5, seed=7, max_tokens=20
    )
    assert [choice.index for choice in completion.choices] == [0, 1]


def tool() -> None:
    client, messages = OpenAI(), [QUESTION]
    message = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
    answer = client.chat.completions.create(
        model=MODEL, messages=[*messages, message, *_results(message)], tools=[TOOL]
    )
    assert answer.choices[0].message.content


def streamed_tool() -> None:
    calls: dict[int, dict[str, Any]] = {}
    for chunk in _stream([QUESTION], tools=[TOOL]):
        for piece in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            if piece.index not in calls:
                calls[piece.index] = piece.model_dump(exclude={"index"})
            else:
                calls[piece.index]["function"]["arguments"] += piece.function.arguments
    assert [call["function"]["name"] for call in calls.values()] == ["get_weather"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "14 degrees"} for call in calls.values()]
    message = {"role": "assistant", "content": None, "tool_calls": list(calls.values())}
    chunks = list(_stream([QUESTION, message, *results], tools=[TOOL]))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def _results(message: Any) -> list[dict[str, str]]:
    """Return a tool message for each call of the assistant's message."""
    assert message.tool_calls, f"the answer calls no tool: {message}"
    for call in message.tool_calls:
        assert call.function.name == "get_weather"
        assert "location" in json.loads(call.function.arguments)
    return [{"role": "tool", "tool_call_id": call.id, "content": "14 degrees"} for call in message.tool_calls]


def parse() -> None:
    completion = OpenAI().chat.completions.parse(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Extract the event information."},
            {"role": "user", "content": "Alice and Bob are going to a science fair on Friday."},
        ],
        response_format=CalendarEvent,
    )
    assert isinstance(completion.choices[0].message.parsed, CalendarEvent)


def completions() -> None:
    assert OpenAI().completions.create(model=MODEL, prompt="Say this is a test", max_tokens=7).choices[0].text


def responses() -> None:
    response = OpenAI().responses.create(model=MODEL, instructions="Answer shortly.", input="Tell me a story.")
    assert response.output_text
    assert response.usage
    assert response.usage.output_tokens > 0


def streamed_responses() -> None:
    events = list(OpenAI().responses.create(model=MODEL, input="Tell me a story.", stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text
    # The modelled engine's text ends at the limit of tokens, so the last event may be response.incomplete.
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == text


def second_turn_of_responses() -> None:
    client = OpenAI()
    first = client.responses.create(model=MODEL, input="Tell me a joke.")
    assert first.store, "the response was not kept"
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input="Explain it.")
    assert second.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text


def tool_of_responses() -> None:
    client, items = OpenAI(), [QUESTION]
    response = client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL])
    calls = [item for item in response.output if item.type == "function_call"]
    assert calls, f"the answer calls no tool: {response.output}"
    items += response.output
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "14 degrees"} for call in calls]
    assert client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL]).output_text


def parse_of_responses() -> None:
    response = OpenAI().responses.parse(
        model=MODEL, input="Alice and Bob are going to a science fair on Friday.", text_format=CalendarEvent
    )
    assert isinstance(response.output_parsed, CalendarEvent)


def embeddings() -> None:
    response = OpenAI().embeddings.create(model=MODEL, input=["The food was delicious.", "The waiter was friendly."])
    assert [each.index for each in response.data] == [0, 1]
    assert all(each.embedding and isinstance(each.embedding[0], float) for each in response.data)


run(
    models, chat, asynchronous_chat, streamed_chat, second_turn, sampling_and_choices, tool, streamed_tool, parse,
    completions, responses, streamed_responses, second_turn_of_responses, tool_of_responses, parse_of_responses,
    embeddings,
)  # fmt: skip
