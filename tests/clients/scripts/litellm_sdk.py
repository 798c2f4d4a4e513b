"""LiteLLM as an SDK, with headgate as a server of OpenAI's kind."""

from __future__ import annotations

import json
from typing import Any

import litellm
from pydantic import BaseModel
from steps import API_KEY, BASE_URL, MODEL, run

SERVER: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY}
QUESTION = {"role": "user", "content": "What is the weather like in Paris?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class CalendarEvent(BaseModel):
    name: str
    participants: list[str]


def chat() -> None:
    answer = litellm.completion(messages=[QUESTION], **SERVER)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


async def asynchronous_chat() -> None:
    assert (await litellm.acompletion(messages=[QUESTION], **SERVER)).choices[0].message.content


def streamed() -> None:
    chunks = list(litellm.completion(messages=[QUESTION], stream=True, **SERVER))
    assert litellm.stream_chunk_builder(chunks, messages=[QUESTION]).choices[0].message.content


def tool_and_second_turn() -> None:
    messages: list[Any] = [QUESTION]
    message = litellm.completion(messages=messages, tools=[TOOL], tool_choice="auto", **SERVER).choices[0].message
    assert message.tool_calls, f"the answer calls no tool: {message}"
    assert "city" in json.loads(message.tool_calls[0].function.arguments)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    messages += [message, *results]
    assert litellm.completion(messages=messages, tools=[TOOL], **SERVER).choices[0].message.content


def structured_output() -> None:
    answer = litellm.completion(messages=[QUESTION], response_format=CalendarEvent, **SERVER)
    CalendarEvent.model_validate_json(answer.choices[0].message.content)


def text_completion() -> None:
    completed = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt="Say this is a test",
        max_tokens=7,
        api_base=BASE_URL,
        api_key=API_KEY,
    )
    assert completed.choices[0].text


def responses() -> None:
    assert litellm.responses(input="Tell me a story.", **SERVER).output[0].content[0].text


def embeddings() -> None:
    assert len(litellm.embedding(input=["good morning", "good night"], **SERVER).data) == 2


run(
    chat, asynchronous_chat, streamed, tool_and_second_turn, structured_output, text_completion, responses, embeddings,
)  # fmt: skip
