"""Answers of servers with another dialect: whole and streamed they are OpenAI's form, and they can be sent back."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from dispatcher.fields.parse import parse_request
from dispatcher.model.answers import AnswerHead, Collected, tokens_of
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, Token
from dispatcher.workers.client import LINE_BYTES_MAX
from dispatcher.workers.wire import encode_event, parse_event
from gpu_worker.engines.interface import EngineError, EngineEvent, PromptTooLong, own_order
from gpu_worker.engines.openai.normal.answer import KINDS_MAX, Oddities
from tests.support.worker.foreign_answers import ESTIMATED, Kind, kinds
from tests.support.worker.openai_server import DONE, FakeServer, chunk, engine_of, outcome, says
from tests.support.world.virtual_time import run

pytestmark = pytest.mark.virtual_time

KINDS = list(kinds())
ANSWERS = [kind for kind in KINDS if not kind.error]
ERRORS = [kind for kind in KINDS if kind.error]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("a", "b", "get_", "get_weather")
]
HEAD = AnswerHead("i", 1, "m", Endpoint.CHAT)
QUESTION = {"role": "user", "content": "hello"}


def served(kind: Kind) -> tuple[list[EngineEvent], EngineError | None]:
    """Return what the engine makes of a kind. Every event crosses the wire between worker and gate."""
    return _served(KINDS.index(kind))


@cache
def _served(number: int) -> tuple[list[EngineEvent], EngineError | None]:
    kind = KINDS[number]
    return _outcome(FakeServer(says(*kind.body), kind.status, kind.media, kind.headers))


def served_parts(*body: bytes) -> tuple[list[EngineEvent], EngineError | None]:
    return _outcome(FakeServer(says(*body)))


def _outcome(server: FakeServer) -> tuple[list[EngineEvent], EngineError | None]:
    async def story() -> tuple[list[EngineEvent], EngineError | None]:
        body = {"messages": [QUESTION], "tools": TOOLS}
        async with engine_of(server) as engine:
            events, error = await outcome(engine, own_order("i#1", "tenant", body, 64, Endpoint.CHAT))
        assert server.open == 0, "an answer was left open"
        return events, error

    events, error = run(story())
    return [parse_event(encode_event(event)) for event in events], error  # type: ignore[misc]


def collected(events: list[EngineEvent]) -> Collected:
    found = Collected()
    for event in events:
        found.note(event)
    return found


def whole(events: list[EngineEvent]) -> dict[str, Any]:
    found = collected(events)
    return HEAD.body(found.choices(), found.finished)


def streamed(events: list[EngineEvent]) -> dict[str, Any]:
    """Return the completion that the openai SDK makes of the gate's stream."""
    pytest.importorskip("openai")
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    state: Any = ChatCompletionStreamState()
    chunks = HEAD.opening(1)
    for event in events:
        if isinstance(event, Token):
            chunks.append(HEAD.chunk(event))
        elif isinstance(event, Finished):
            chunks += HEAD.last_chunks(event)
    for each in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(json.loads(json.dumps(each, allow_nan=False))))
    dumped: dict[str, Any] = state.current_completion_snapshot.model_dump()
    return dumped


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.name)
class TestAnAnswer:
    def test_is_complete_in_openais_form(self, kind: Kind) -> None:
        events, error = served(kind)
        assert error is None
        body = whole(events)
        (choice,) = body["choices"]
        message = choice["message"]
        assert (message["content"] or "", choice["finish_reason"]) == (kind.text, kind.reason)
        tokens = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        assert tokens[0] > 0
        assert (tokens[0] if kind.tokens[0] != ESTIMATED else ESTIMATED, tokens[1]) == kind.tokens
        found = [
            (each["id"], each["function"]["name"], each["function"]["arguments"])
            for each in message.get("tool_calls", ())
        ]
        assert len({each[0] for each in found}) == len(found), "two calls have one id"
        assert [each[1:] for each in found] == [each[1:] for each in kind.calls]
        wanted = [each[0] for each in kind.calls]
        assert [
            name if want != "*" else "*" for name, want in zip((each[0] for each in found), wanted, strict=True)
        ] == wanted
        own = ("role", "content", "tool_calls")
        rest = {name: value for name, value in message.items() if name not in own and value is not None}
        assert rest == kind.rest

    def test_is_the_same_as_a_stream(self, kind: Kind) -> None:
        events, _ = served(kind)
        calls = [
            item for each in events if isinstance(each, Token) for item in (each.delta or {}).get("tool_calls", ())
        ]
        assert all(isinstance(each["index"], int) for each in calls)
        mine, theirs = (body["choices"][0] for body in (whole(events), streamed(events)))
        assert theirs["finish_reason"] == mine["finish_reason"]
        assert (theirs["message"]["content"] or "") == (mine["message"]["content"] or "")
        assert [
            {name: value for name, value in each.items() if name in ("id", "type")}
            | {name: each["function"][name] for name in ("name", "arguments")}
            for each in theirs["message"]["tool_calls"] or ()
        ] == [
            {"id": each["id"], "type": each["type"], **each["function"]}
            for each in mine["message"].get("tool_calls", ())
        ]

    def test_can_be_sent_back(self, kind: Kind) -> None:
        events, _ = served(kind)
        message = whole(events)["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in message.get("tool_calls", ())
        ]
        parse_request(
            {"model": "m", "messages": [QUESTION, message, *results, QUESTION], "tools": TOOLS}, Endpoint.CHAT
        )

    def test_costs_something(self, kind: Kind) -> None:
        events, _ = served(kind)
        assert collected(events).output_tokens > 0

    def test_of_a_whole_body_can_be_streamed_later(self, kind: Kind) -> None:
        """A kept answer is repeated as a stream: with the index that the SDK needs."""
        events, _ = served(kind)
        again = tokens_of(collected(events).choices(), 1)
        last = next(each for each in events if isinstance(each, Finished))
        for name in ("content", "tool_calls"):
            first, second = (
                body["choices"][0]["message"][name] for body in (streamed([*again, last]), streamed(events))
            )
            assert first == second


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.name)
def test_an_error_is_the_requests(kind: Kind) -> None:
    _, error = served(kind)
    assert error is not None
    assert (error.code, error.status) == (kind.error, kind.fault)
    assert isinstance(error, PromptTooLong) == (kind.error == "context_length_exceeded")
    assert "sk-secret" not in error.message
    assert "canary" not in error.message
    assert kind.says is None or error.message == kind.says


def test_a_line_may_be_as_long_as_an_answer() -> None:
    """The gate reads lines of the worker up to a million bytes, so that a long piece comes in several."""
    text, arguments = "x😀" * 100_000, json.dumps({"x": "é" * 150_000}, ensure_ascii=False)
    calls = [{"id": name, "function": {"name": name, "arguments": arguments}} for name in ("a", "b")]
    sent = [chunk(text), chunk(reasoning="y" * 500_000), chunk(tool_calls=calls)]
    events, error = served_parts(*sent, chunk(reason="stop"), DONE)
    assert error is None
    assert max(len(encode_event(event)) for event in events) < LINE_BYTES_MAX
    (choice,) = collected(events).choices()
    assert (choice["text"], choice["delta"]["reasoning"]) == (text, "y" * 500_000)
    assert [each["function"] for each in choice["delta"]["tool_calls"]] == [each["function"] for each in calls]
    assert collected(events).output_tokens == 3


class TestLogProbabilities:
    def _of(self, written: bytes) -> Any:
        sent = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": ' + written + b"}]}\n\n"
        events, error = served_parts(sent, chunk(reason="stop"), DONE)
        assert error is None
        return whole(events)["choices"][0]["logprobs"]

    @pytest.mark.parametrize("value", [b"-Infinity", b"NaN", b"null", b"-1e999"])
    def test_of_a_chat_are_numbers(self, value: bytes) -> None:
        found = self._of(b'{"content": [{"token": "x", "logprob": ' + value + b', "top_logprobs": []}]}')
        assert found["content"][0]["logprob"] == -9999.0

    def test_of_a_completion_may_be_null(self) -> None:
        found = self._of(b'{"tokens": ["a", "b"], "token_logprobs": [null, -Infinity]}')
        assert found["token_logprobs"] == [None, -9999.0]

    def test_have_whole_characters(self) -> None:
        assert self._of(b'{"content": [{"token": "\\ud83d", "logprob": -1}]}')["content"][0]["token"] == "\ufffd"

    def test_that_are_too_deep_are_left_out(self) -> None:
        assert self._of(b'{"content": ' + b"[" * 60 + b"]" * 60 + b"}") is None


async def test_what_is_guessed_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(says(chunk("x", vendor=1), chunk(reason="weird"), DONE))
    async with engine_of(server) as engine:
        for number in range(3):
            await outcome(engine, own_order(f"{number}", "tenant", {"messages": [QUESTION]}, 9, Endpoint.CHAT))
        assert sorted(engine.oddities.counts.values()) == [3, 3]
    assert sum("logged once" in each.message for each in caplog.records) == 2


def test_words_without_end_are_counted_as_one() -> None:
    oddities = Oddities()
    for number in range(10 * KINDS_MAX):
        oddities.note("a guess", f"word {number}")
    assert len(oddities.counts) == KINDS_MAX + 1


def test_there_are_kinds_enough() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) >= 93 + 20
