"""Answers of a server that works: what it gets, and the events that become of its answer."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, EngineEvent, Finished, Started, Token, WorkOrder, own_order
from gpu_worker.engines.openai.server_api import TEMPLATE_TOKENS
from gpu_worker.policies.fairness.accounting import TenantService
from tests.support.worker.openai_server import (
    CARD,
    DONE,
    JSON,
    MODEL,
    FakeServer,
    Script,
    chunk,
    counting,
    data,
    engine_of,
    last,
    outcome,
    says,
    text,
    usage,
)
from tests.support.world.virtual_time import run

CONTEXT = 1000

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def asked(body: Any = CHAT, *, tokens: int = 10, endpoint: Endpoint = Endpoint.CHAT, choices: int = 1) -> WorkOrder:
    return own_order("a", "tenant", body, tokens, endpoint, choices)


def answered(
    script: Script, request: WorkOrder | None = None, *, server: FakeServer | None = None, **options: Any
) -> tuple[list[EngineEvent], FakeServer]:
    server = server or FakeServer()
    server.script = script

    async def story() -> tuple[list[EngineEvent], EngineError | None]:
        async with engine_of(server, **options) as engine:
            return await outcome(engine, request or asked())

    events, error = run(story())
    assert (error, server.open) == (None, 0)
    return events, server


def test_a_chat_arrives_token_by_token() -> None:
    events, _ = answered(counting, asked(tokens=3))
    assert [each.text for each in events if isinstance(each, Token)] == [" 1", " 2", " 3"]
    assert [each.output_tokens for each in events if isinstance(each, Token)] == [1, 2, 3]
    assert last(events) == Finished("length", 7, 3)


def test_the_body_passes_through_with_the_fields_of_the_gate() -> None:
    body = {**CHAT, "temperature": 0.5, "tools": [{"type": "function"}], "seed": 3}
    _, server = answered(counting, asked(body, tokens=2))
    assert server.paths == ["/v1/chat/completions"]
    streaming = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    assert server.bodies == [{**body, "model": MODEL, "max_tokens": 2, **streaming}]


def without_limit(most: int, *, choices: int = 1) -> WorkOrder:
    return own_order("a", "tenant", CHAT, most, Endpoint.CHAT, choices, expected_tokens=5)


def test_a_request_without_a_limit_gets_one_if_it_certainly_fits() -> None:
    room = CONTEXT - TEMPLATE_TOKENS - len("user" + "hello")
    _, fits = answered(says(chunk("x", reason="stop"), DONE), without_limit(room))
    _, too_long = answered(says(chunk("x", reason="stop"), DONE), without_limit(room + 1))
    assert fits.bodies[0]["max_tokens"] == room
    assert "max_tokens" not in too_long.bodies[0]


async def endless(_body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """A server without a limit: two choices, and no end."""
    for number in itertools.count():
        await asyncio.sleep(0.01)
        yield chunk(f" {number}", index=number % 2)


def test_an_answer_without_a_limit_at_the_server_ends_at_the_requests() -> None:
    most = CONTEXT
    events, server = answered(endless, without_limit(most, choices=2))
    assert "max_tokens" not in server.bodies[0]
    counted = Counter(each.choice for each in events if isinstance(each, Token))
    assert counted == {0: most, 1: most}
    assert last(events) == Finished("length", 3, 2 * most, ("length", "length"))


def test_a_server_that_is_not_known_for_it_is_not_asked_for_continuous_usage() -> None:
    server = FakeServer(cards=[{**CARD, "owned_by": "llamacpp"}])
    _, server = answered(counting, server=server)
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


def test_a_hook_adds_fields() -> None:
    _, server = answered(counting, fields=lambda request: {"vllm_xargs": {"tenant": request.terms.tenant}})
    assert server.bodies[0]["vllm_xargs"] == {"tenant": "tenant"}


def test_the_true_count_of_the_prompt_is_announced_before_the_first_token() -> None:
    events, _ = answered(counting, asked(tokens=1))
    assert events[:2] == [Started(3), Started(7)]
    assert isinstance(events[2], Token)


def test_a_completion_has_its_text_beside_the_choice() -> None:
    parts = [data({"choices": [{"index": 0, "text": word, "finish_reason": None}]}) for word in ("a", "b")]
    end = data({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    events, server = answered(
        says(*parts, end, usage(4, 2), DONE), asked({"prompt": "x"}, endpoint=Endpoint.COMPLETION)
    )
    assert (text(events), last(events)) == ("ab", Finished("stop", 4, 2))
    assert server.paths == ["/v1/completions"]


def test_other_fields_of_a_delta_arrive_as_they_were_sent() -> None:
    call = [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]
    script = says(chunk(reasoning="hm"), chunk(tool_calls=call, role="assistant"), chunk(reason="tool_calls"), DONE)
    events, _ = answered(script)
    rest = [{"index": 0, "function": {"arguments": "{}"}}]
    assert [each.delta for each in events if isinstance(each, Token)] == [
        {"reasoning": "hm"},
        {"tool_calls": call},
        {"tool_calls": rest},  # a call without arguments ends with an empty object, so that a client can parse them
    ]
    assert last(events) == Finished("tool_calls", 3, 2)


def test_log_probabilities_arrive_with_their_piece() -> None:
    probabilities = {"content": [{"token": "a", "logprob": -0.5}]}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": probabilities, "finish_reason": "stop"}
    events, _ = answered(says(data({"choices": [choice]}), DONE))
    assert [each.logprobs for each in events if isinstance(each, Token)] == [probabilities]


def test_the_tokens_of_all_choices_count_and_each_has_its_reason() -> None:
    script = says(
        chunk("a", index=1, usage=(7, 1)),
        chunk("b", index=0, usage=(7, 1)),
        chunk("c", index=1, usage=(7, 2)),
        chunk(index=1, reason="length", usage=(7, 2)),
        chunk(index=0, reason="stop", usage=(7, 1)),
        usage(7, 3),
        DONE,
    )
    events, server = answered(script, asked(choices=2))
    assert server.bodies[0]["n"] == 2
    assert (text(events, 0), text(events, 1)) == ("b", "ac")
    assert [each.output_tokens for each in events if isinstance(each, Token)] == [1, 2, 3]
    assert last(events) == Finished("stop", 7, 3, ("stop", "length"))


def test_a_piece_of_several_tokens_counts_as_the_server_reports() -> None:
    events, _ = answered(says(chunk("a b c", usage=(7, 3)), chunk(reason="stop", usage=(7, 3)), usage(7, 3), DONE))
    assert [each.output_tokens for each in events if isinstance(each, Token)] == [3]
    assert last(events).output_tokens == 3


def test_tokens_without_text_yet_are_progress() -> None:
    events, _ = answered(says(chunk("", usage=(7, 1)), chunk("é", usage=(7, 2)), chunk(reason="stop"), DONE))
    assert [(each.text, each.output_tokens) for each in events if isinstance(each, Token)] == [("", 1), ("é", 2)]


def test_usage_at_the_end_alone_corrects_the_count_of_the_pieces() -> None:
    events, _ = answered(says(chunk("a"), chunk("b c"), chunk(reason="stop"), usage(9, 3), DONE))
    assert [each.output_tokens for each in events if isinstance(each, Token)] == [1, 2]
    assert last(events) == Finished("stop", 9, 3)


def test_a_server_that_does_not_stream_is_understood() -> None:
    whole = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    events, _ = answered(says(json.dumps(whole).encode()), server=FakeServer(content_type=JSON))
    assert (text(events), last(events)) == ("all", Finished("stop", 5, 2))


@pytest.mark.parametrize("value", [[0.5, -1, 2], "AAAA"])
def test_each_input_has_its_embedding(value: Any) -> None:
    items = [{"index": 1, "embedding": value}, {"index": 0, "embedding": value}]
    answer = json.dumps({"data": items, "usage": {"prompt_tokens": 6, "total_tokens": 6}}).encode()
    request = asked({"input": ["a", "b"], "dimensions": 3}, endpoint=Endpoint.EMBEDDINGS, tokens=0)
    events, server = answered(says(answer), request, server=FakeServer(content_type=JSON))
    embedding = {"embedding": value}
    assert [each for each in events if isinstance(each, Token)] == [
        Token("", 0, 0, embedding),
        Token("", 0, 1, embedding),
    ]
    assert last(events) == Finished("stop", 6, 0)
    assert server.paths == ["/v1/embeddings"]
    assert server.bodies == [{"input": ["a", "b"], "dimensions": 3, "model": MODEL}]


@pytest.mark.virtual_time
async def test_a_long_message_of_an_error_is_cut() -> None:
    body = json.dumps({"detail": "x" * 10_000}).encode()
    async with engine_of(FakeServer(says(body), status=400)) as engine:
        _, error = await outcome(engine, asked())
    assert error is not None
    assert len(error.message) == 500


PROMPT = 100


def ended(**details: Any) -> tuple[Finished, TenantService]:
    """Return the end of an answer of 3 tokens with this in its usage, and what the engine's policy charged."""
    usage = {"prompt_tokens": PROMPT, "completion_tokens": 3, **details}
    server = FakeServer()
    server.script = says(chunk("a b c"), chunk(reason="stop"), data({"choices": [], "usage": usage}), DONE)

    async def story() -> tuple[Finished, TenantService]:
        async with engine_of(server) as engine:
            request = own_order("a", "tenant", {"messages": [{"role": "user", "content": "hello"}]}, 10)
            events, error = await outcome(engine, request)
            assert error is None
            return last(events), engine.stats().tenants["tenant"]

    return run(story())


@pytest.mark.parametrize(
    ("details", "cached", "reasoning"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 80}}, 80, 0),
        ({"prompt_tokens_details": {"cached_tokens": 80.0, "audio_tokens": 0}}, 80, 0),
        ({"input_tokens_details": {"cached_tokens": 80}, "output_tokens_details": {"reasoning_tokens": 2}}, 80, 2),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64, 0),
        ({"cache_read_input_tokens": 50, "cache_creation_input_tokens": 0}, 50, 0),
        ({"cached_tokens": 7, "prompt_tokens_details": None}, 7, 0),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, 0, 3),
        ({"prompt_tokens_details": {}}, 0, 0),
    ],
)
def test_each_name_is_read(details: dict[str, Any], cached: int, reasoning: int) -> None:
    finished, _ = ended(**details)
    assert finished == Finished("stop", PROMPT, 3, (), cached, reasoning)


@pytest.mark.parametrize("count", [PROMPT + 1, -1, True, "80", 80.5, [80], None])
def test_a_count_that_cannot_be_true_is_ignored(count: object) -> None:
    finished, _ = ended(
        prompt_tokens_details={"cached_tokens": count}, completion_tokens_details={"reasoning_tokens": count}
    )
    assert (finished.cached_tokens, finished.reasoning_tokens) == (0, 0)


def test_the_engines_policy_charges_a_cached_token_a_tenth() -> None:
    _, plain = ended()
    _, cached = ended(prompt_tokens_details={"cached_tokens": 80})
    assert plain.service == PROMPT + 2 * 3
    assert cached.service == pytest.approx(plain.service - 0.9 * 80)
