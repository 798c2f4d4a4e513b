"""Each capability that an engine registers works, whatever engine it is."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Awaitable, Callable
from math import exp, hypot
from typing import Any

import pytest

from dispatcher.model.fleet import Capability
from dispatcher.model.requests import Endpoint
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.engines.interface import Engine, EngineError, EngineEvent, Finished, Started, Token
from tests.engines.engine_kinds import end_of, events_of, finished, idle, past_first_token, request

ASKED = [{"role": "user", "content": "What is the weather in Delft?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city", "days"],
        },
    },
}
RESULT = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "a"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
]


def chat(request_id: str, messages: Any = ASKED, **changes: Any) -> Any:
    return request(request_id, endpoint=Endpoint.CHAT, messages=messages, **changes)


def tokens_of(events: list[EngineEvent]) -> list[Token]:
    return [event for event in events if isinstance(event, Token)]


def text_in(events: list[EngineEvent], choice: int = 0) -> str:
    return "".join(event.text for event in tokens_of(events) if event.choice == choice)


def input_tokens_in(events: list[EngineEvent]) -> int:
    assert isinstance(events[0], Started)
    return events[0].input_tokens


async def chats(engine: Engine) -> None:
    events = await events_of(engine, chat("chat", max_tokens=4))
    assert events[-1] == Finished("length", input_tokens_in(events), 4)
    parts = [{"role": "user", "content": [{"type": "text", "text": ASKED[0]["content"]}]}]
    assert input_tokens_in(await events_of(engine, chat("parts", parts, max_tokens=1))) == input_tokens_in(events)


async def completes(engine: Engine) -> None:
    assert len(tokens_of(await events_of(engine, request("completion", max_tokens=4)))) == 4


async def samples(engine: Engine) -> None:
    """Every field at once, none at its neutral value."""
    fields: dict[str, Any] = {
        "top_p": 0.5,
        "top_k": 9,
        "min_p": 0.01,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
    }
    fields |= {"repetition_penalty": 1.1, "logit_bias": {"65": -100}, "temperature": 0.7, "seed": 3}
    events = await events_of(engine, request("sampling", max_tokens=6, **fields))
    assert len(tokens_of(events)) == 6


async def chooses(engine: Engine) -> None:
    """The choices differ, end one by one, and all of their tokens count."""
    events = await events_of(engine, request("many", "many", choices=3, max_tokens=5, temperature=1.0, seed=1))
    assert events[-1] == Finished("length", input_tokens_in(events), 15, ("length",) * 3)
    assert [token.output_tokens for token in tokens_of(events)] == list(range(1, 16))
    assert {token.choice for token in tokens_of(events)} == {0, 1, 2}
    assert len({text_in(events, choice) for choice in range(3)}) == 3
    await idle(engine)
    assert engine.stats().tenants["many"].output_tokens == 15
    stops = text_in(events, 1)[:6]
    cut = await events_of(engine, request("cut", choices=3, max_tokens=5, temperature=1.0, seed=1, stop=[stops]))
    assert end_of(cut).reasons[1] == "stop"
    assert text_in(cut, 1) == ""


async def keeps_to_lengths(engine: Engine) -> None:
    """Neither the model nor a stop string ends the text too early."""
    fields: dict[str, Any] = {"temperature": 1.5, "seed": 1, "max_tokens": 40}
    for name, length in (("ignored", {"ignore_eos": True}), ("least", {"min_tokens": 40})):
        for request_of in (request, chat):
            events = await events_of(engine, request_of(f"{name}-{request_of.__name__}", **fields, **length))
            assert events[-1] == Finished("length", input_tokens_in(events), 40)
    text = text_in(await events_of(engine, request("text", max_tokens=12)))
    stopped = await events_of(engine, request("stopped", max_tokens=12, min_tokens=4, stop=[text[:1], text[-2:]]))
    assert 4 < end_of(stopped).output_tokens <= 12
    assert text.startswith(text_in(stopped))
    assert len(text_in(stopped)) > 1


async def reads_token_ids(engine: Engine) -> None:
    events = await events_of(engine, request("ids", prompt=[5, 6, 7], max_tokens=4))
    assert events[-1] == Finished("length", 3, 4)
    again = await events_of(engine, request("again", prompt=[5, 6, 7], max_tokens=4))
    assert text_in(again) == text_in(events)


async def reports_logprobs(engine: Engine) -> None:
    for fields, count in (({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)):
        events = await events_of(engine, chat(f"chat-{count}", max_tokens=4, **fields))
        entries = [entry for token in tokens_of(events) for entry in (token.logprobs or {})["content"]]
        assert "".join(entry["token"] for entry in entries) == text_in(events)
        assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
        assert all(len(entry["top_logprobs"]) == count and entry["logprob"] <= 0 for entry in entries)
        assert all(sum(exp(top["logprob"]) for top in entry["top_logprobs"]) <= 1.0001 for entry in entries)
    events = await events_of(engine, request("completion", max_tokens=4, logprobs=2))
    pieces: list[Any] = [token.logprobs for token in tokens_of(events)]
    assert "".join(text for piece in pieces for text in piece["tokens"]) == text_in(events)
    assert [at for piece in pieces for at in piece["text_offset"]][:2] == [0, len(pieces[0]["tokens"][0])]
    for piece in pieces:
        assert piece["top_logprobs"][0][piece["tokens"][0]] == piece["token_logprobs"][0]
        assert 2 <= len(piece["top_logprobs"][0]) <= 3
    none = await events_of(engine, request("none", max_tokens=2))
    assert [token.logprobs for token in tokens_of(none)] == [None, None]


async def knows_tools(engine: Engine) -> None:
    """Tools are part of the input, and a conversation with a call and its result is accepted."""
    without = await events_of(engine, chat("without", max_tokens=1))
    plain = await events_of(engine, chat("plain", tools=[WEATHER], tool_choice="none", max_tokens=4))
    assert not any(token.delta for token in tokens_of(plain))
    offered = await events_of(engine, chat("offered", tools=[WEATHER], max_tokens=40))
    assert input_tokens_in(offered) > input_tokens_in(without)
    answered = await events_of(engine, chat("answered", RESULT, tools=[WEATHER], max_tokens=4))
    assert input_tokens_in(answered) > input_tokens_in(offered)
    assert text_in(answered)


async def writes_json(engine: Engine) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER["function"]["parameters"]}}
    for name, form, expected in (("object", {"type": "json_object"}, set()), ("schema", schema, {"city", "days"})):
        events = await events_of(engine, chat(name, response_format=form, max_tokens=100))
        assert set(json.loads(text_in(events))) == expected
        assert end_of(events).reason == "stop"


async def embeds(engine: Engine) -> None:
    def asked(request_id: str, **fields: Any) -> Any:
        body = {"input": ["one", "two", "one"], "temperature": None, "prompt": None, **fields}
        return request(request_id, "embedding", endpoint=Endpoint.EMBEDDINGS, max_tokens=0, **body)

    events = await events_of(engine, asked("floats", dimensions=8))
    vectors = {token.choice: (token.delta or {})["embedding"] for token in tokens_of(events)}
    assert sorted(vectors) == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
    assert all(len(vector) == 8 and abs(hypot(*vector) - 1) < 1e-6 for vector in vectors.values())
    assert events[-1] == Finished("stop", input_tokens_in(events), 0)
    (text,) = tokens_of(await events_of(engine, asked("text", input="one", dimensions=8, encoding_format="base64")))
    assert struct.unpack("<8f", base64.b64decode((text.delta or {})["embedding"])) == pytest.approx(vectors[0])
    await idle(engine)
    got = engine.stats().tenants["embedding"]
    assert (got.output_tokens, got.service) == (0, WEIGHTED_TOKENS(got.input_tokens, 0))


CHECKS: dict[str, Callable[[Engine], Awaitable[None]]] = {
    Capability.CHAT: chats,
    Capability.COMPLETION: completes,
    Capability.SAMPLING: samples,
    Capability.CHOICES: chooses,
    Capability.LENGTH: keeps_to_lengths,
    Capability.TOKEN_IDS: reads_token_ids,
    Capability.LOGPROBS: reports_logprobs,
    Capability.TOOLS: knows_tools,
    Capability.STRUCTURED: writes_json,
    Capability.EMBEDDINGS: embeds,
}


async def test_what_an_engine_registers_works(engine: Engine) -> None:
    registered = engine.facts.capabilities
    assert registered >= {Capability.CHAT, Capability.COMPLETION, Capability.CHOICES}
    for capability in sorted(registered):
        await CHECKS[capability](engine)
    await idle(engine)


async def test_a_request_with_choices_ends_as_a_whole(engine: Engine) -> None:
    stream = engine.generate(request("aborted", choices=4, max_tokens=400))
    await past_first_token(stream)
    await engine.abort("aborted")
    last = await finished(stream)
    assert (last.reason, len(last.reasons)) == ("aborted", 4)
    await idle(engine)
    closed = engine.generate(request("closed", choices=4, max_tokens=400))
    await past_first_token(closed)
    await closed.aclose()
    await idle(engine)


BAD: list[dict[str, Any]] = [
    {"endpoint": Endpoint.CHAT, "messages": None},
    {"endpoint": Endpoint.CHAT, "messages": []},
    {"prompt": ["one", "two"]},
    {"prompt": []},
    {"prompt": None},
]


@pytest.mark.parametrize("fields", BAD)
async def test_a_body_that_an_engine_cannot_read_is_the_tenants_error(engine: Engine, fields: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        await events_of(engine, request("r", **fields))
    assert caught.value.code == "invalid_request"
    assert (engine.stats().waiting, engine.stats().running) == (0, 0)
