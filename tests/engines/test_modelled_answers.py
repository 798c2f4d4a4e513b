"""What the modelled engine answers without a model: tool calls, JSON, embeddings, and when text ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineError, EngineEvent, Evicted, Finished, RefusedByPolicy, Started
from gpu_worker.engines.modelled.answers import WORDS, tool_to_call, unit_vector
from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import make_queue
from tests.engines.engine_kinds import end_of, events_of, request
from tests.engines.test_engine_features import ASKED, RESULT, WEATHER, chat, text_in, tokens_of


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def asked_after(*calls: str) -> list[dict[str, Any]]:
    """A conversation in which these functions were called and answered."""
    turns: list[dict[str, Any]] = [*ASKED]
    for name in calls:
        turns.append({"role": "assistant", "tool_calls": [{"id": name, **function(name)}]})
        turns.append({"role": "tool", "tool_call_id": name, "content": "done"})
    return turns


A, B = function("a"), function("b")
CHOICES: list[tuple[Any, list[dict[str, Any]], str | None]] = [
    (None, ASKED, "a"),
    ("auto", ASKED, "a"),
    ("auto", asked_after("a"), None),
    ("auto", [*asked_after("a"), *ASKED], "a"),
    ("none", ASKED, None),
    ("required", ASKED, "a"),
    ("required", asked_after("a"), "b"),
    ("required", asked_after("a", "b"), "b"),
    (B, ASKED, "b"),
    (B, asked_after("b"), "b"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [B]}}, ASKED, "b"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [B]}}, asked_after("b"), None),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [B]}}, asked_after("a"), "b"),
]


@pytest.mark.parametrize(("choice", "messages", "called"), CHOICES)
def test_the_tool_choice_is_obeyed(choice: Any, messages: list[dict[str, Any]], called: str | None) -> None:
    found = tool_to_call({"messages": messages, "tools": [A, B], "tool_choice": choice})
    assert (found and found["name"]) == called


BAD_TOOLS: list[dict[str, Any]] = [
    {"tools": [A], "tool_choice": function("missing")},
    {"tools": [A], "tool_choice": "sometimes"},
    {"tools": [A], "tool_choice": {"type": "function"}},
    {"tools": [], "tool_choice": "required"},
    {"tools": [{"type": "custom", "custom": {"name": "a"}}]},
    {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"$ref": "#/nowhere"}}}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": False}}},
]


async def answer(body: Any, **shape: Any) -> list[EngineEvent]:
    engine = ModelledEngine(make_policy("vtc"), profile=INSTANT)
    await engine.start()
    try:
        return await events_of(engine, body)
    finally:
        await engine.stop()


@pytest.mark.parametrize("fields", BAD_TOOLS)
async def test_what_is_not_understood_is_the_tenants_error(fields: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        await answer(chat("r", **fields))
    assert caught.value.code == "invalid_request"


async def test_a_tool_call_is_streamed_as_a_real_engine_streams_it() -> None:
    events = await answer(chat("r", tools=[WEATHER], max_tokens=50))
    first, *rest = [(token.delta or {})["tool_calls"] for token in tokens_of(events)]
    assert first == [
        {"index": 0, "id": first[0]["id"], "type": "function", "function": {"name": "weather", "arguments": ""}}
    ]
    arguments = "".join(call["function"]["arguments"] for (call,) in rest)
    assert json.loads(arguments) == {"city": "a", "days": 1}
    assert len(rest) > 3
    assert [token.output_tokens for token in tokens_of(events)] == list(range(1, 2 + len(rest)))
    assert text_in(events) == ""
    assert isinstance(events[0], Started)
    assert events[-1] == Finished("tool_calls", events[0].input_tokens, 1 + len(rest))


async def test_each_choice_calls_by_an_id_of_its_own() -> None:
    events = await answer(chat("r", tools=[A], choices=2, max_tokens=50))
    ids = {call["id"] for token in tokens_of(events) for call in (token.delta or {})["tool_calls"] if "id" in call}
    assert len(ids) == 2
    assert end_of(events).reasons == ("tool_calls", "tool_calls")


async def test_max_tokens_cuts_calls_json_and_text() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER["function"]["parameters"]}}
    cut: list[dict[str, Any]] = [{"tools": [WEATHER]}, {"response_format": form}, {}]
    for fields in cut:
        events = await answer(chat("r", max_tokens=3, **fields))
        end = end_of(events)
        assert (end.reason, end.output_tokens) == ("length", 3)


async def test_a_chat_without_a_limit_ends_by_itself() -> None:
    events = await answer(chat("r", max_tokens=2000, expected_tokens=256))
    assert text_in(events) == " ".join(WORDS * 3)
    end = end_of(events)
    assert (end.reason, end.output_tokens) == ("stop", 3 * len(WORDS))


async def test_a_chat_without_a_limit_that_may_not_end_fills_the_context() -> None:
    events = await answer(chat("r", max_tokens=100_000, expected_tokens=256, ignore_eos=True))
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.input_tokens + last.output_tokens) == ("length", 4096)


async def test_text_after_a_tool_result_ends_by_itself() -> None:
    events = await answer(chat("r", RESULT, tools=[WEATHER], max_tokens=500))
    assert text_in(events) == " ".join(WORDS)
    end = end_of(events)
    assert (end.reason, end.output_tokens) == ("stop", len(WORDS))


@pytest.mark.parametrize(
    ("fields", "tokens"), [({"ignore_eos": True}, 50), ({"min_tokens": 20}, 50), ({"min_tokens": 3}, 14)]
)
async def test_text_after_a_tool_result_goes_on_if_the_request_wants_more(fields: dict[str, Any], tokens: int) -> None:
    events = await answer(chat("r", RESULT, tools=[WEATHER], max_tokens=50, **fields))
    assert end_of(events).output_tokens == tokens


async def test_a_stop_string_cuts_json_too() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"const": "abcdefgh"}}}
    events = await answer(chat("r", response_format=form, stop="de", max_tokens=50))
    assert text_in(events) == '"abc'


async def test_more_choices_than_the_batch_holds_take_turns() -> None:
    events = await answer(request("r", choices=20, max_tokens=3))
    assert end_of(events).output_tokens == 60


async def test_a_request_of_which_the_policy_refuses_a_choice_leaves_nothing_behind() -> None:
    engine = ModelledEngine(make_policy("rpm:2"), profile=INSTANT)
    await engine.start()
    with pytest.raises(RefusedByPolicy):
        await events_of(engine, request("r", choices=3))
    assert (engine.stats().waiting, engine.stats().running) == (0, 0)
    await engine.stop()


async def test_a_choice_that_is_evicted_for_good_ends_the_request() -> None:
    profile = replace(INSTANT, pool_tokens=1000, batch_max=2, prefill_per_token_s=0.001, decode_base_s=0.1)
    queue = make_queue("tiered:vtc", {"may_drop": frozenset({Tier.BACKGROUND})})
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    engine = ModelledEngine(queue, profile=profile, sleep=sleep, monotonic_s=lambda: now[0])
    background = engine.generate(request("b", tier=Tier.BACKGROUND, choices=2, max_tokens=50, timeout_s=3.0))
    await anext(background)
    for _ in range(3):
        await engine.step()
    premium = engine.generate(request("p", "p", tier=Tier.PREMIUM))
    await anext(premium)
    await engine.step()
    with pytest.raises(Evicted):
        [event async for event in background]
    assert engine.stats().running == 1
    await premium.aclose()
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)


async def test_token_ids_are_embedded_and_counted() -> None:
    fields: dict[str, Any] = {"endpoint": Endpoint.EMBEDDINGS, "max_tokens": 0}
    events = await answer(request("r", **fields, input=[[1, 2, 3], [4]]))
    assert events[-1] == Finished("stop", 4, 0)
    for bad in ({"input": {"text": "a"}}, {"input": "a", "dimensions": 10**9}, {"input": [["a"]]}):
        with pytest.raises(EngineError):
            await answer(request("r", **fields, **bad))


def test_a_shorter_vector_is_the_beginning_of_a_longer_one() -> None:
    long, short = unit_vector(b"text", 64), unit_vector(b"text", 8)
    assert [each / long[0] for each in long[:8]] == pytest.approx([each / short[0] for each in short])
