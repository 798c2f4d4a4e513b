"""OpenAI's answers as the official client reads them, and an answer's pieces that become its choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.answers import DONE, KEEPALIVE, AnswerHead, Collected, event, merged, tokens_of, usage
from dispatcher.model.requests import IMAGE_BYTES, Endpoint, Request, request_from_json
from dispatcher.model.worker_protocol import Finished, Started, Token
from dispatcher.responses.answer import usage as usage_of_response

CHAT = AnswerHead("i", 7, "m", Endpoint.CHAT)
COMPLETION = AnswerHead("i", 7, "m", Endpoint.COMPLETION)


def test_bodies() -> None:
    chat, completion = (
        CHAT.body([{"text": "t", "reason": "stop"}], Finished("stop", 2, 3)),
        COMPLETION.body([{"text": "t", "reason": "length"}], Finished("length", 2, 3)),
    )
    assert (chat["id"], chat["object"], chat["created"], chat["model"]) == ("chatcmpl-i", "chat.completion", 7, "m")
    assert chat["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "t", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (completion["id"], completion["object"]) == ("cmpl-i", "text_completion")
    assert completion["choices"] == [{"index": 0, "text": "t", "logprobs": None, "finish_reason": "length"}]
    assert chat["usage"] == completion["usage"] == usage(Finished("stop", 2, 3))
    assert usage(Finished("stop", 2, 3)) == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_usage_has_the_parts_that_the_engine_counted() -> None:
    counted = Finished("stop", 20, 9, (), 15, 4)
    assert usage(counted)["prompt_tokens_details"] == {"cached_tokens": 15}
    assert usage(counted)["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert CHAT.usage_chunk(counted)["usage"] == usage(counted)
    of_response = usage_of_response(counted)
    assert of_response["input_tokens_details"]["cached_tokens"] == 15
    assert of_response["output_tokens_details"]["reasoning_tokens"] == 4
    collected = Collected()
    collected.note(counted)
    assert collected.finished == counted


def test_chunks() -> None:
    assert CHAT.opening(1)[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [each["choices"][0]["index"] for each in CHAT.opening(2)] == [0, 1]
    assert COMPLETION.opening(1) == []
    assert CHAT.chunk(Token("t", 1))["choices"][0]["delta"] == {"content": "t"}
    assert COMPLETION.chunk(Token("t", 1))["choices"][0]["text"] == "t"
    assert CHAT.last_chunks(Finished("stop", 2, 3))[0]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    for head in (CHAT, COMPLETION):
        assert head.usage_chunk(Finished("stop", 1, 2))["choices"] == []


@pytest.mark.parametrize("text", ["a\nb", "a\n\nb", "\r\n", "data: [DONE]", "\u2028", "\x00", "é", "\U0001f600"])
def test_an_event_is_one_line_whatever_the_text(text: str) -> None:
    raw = event({"t": text})
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    assert b"\n" not in raw[:-2]
    assert b"\r" not in raw
    assert json.loads(raw[len(b"data: ") :]) == {"t": text}


def test_what_is_no_event_is_no_event() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert KEEPALIVE.startswith(b":")


def test_the_official_client_reads_them() -> None:
    chat: Any = pytest.importorskip("openai.types.chat")
    chat.ChatCompletion.model_validate(
        CHAT.body([{"text": "t", "reason": "stop"}], Finished("stop", 2, 3)), strict=True
    )
    for chunk in (
        *CHAT.opening(1),
        CHAT.chunk(Token("t", 1)),
        *CHAT.last_chunks(Finished("length", 2, 3)),
        CHAT.usage_chunk(Finished("stop", 1, 2)),
    ):
        chat.ChatCompletionChunk.model_validate(chunk, strict=True)


HEAD = AnswerHead("i", 7, "m", Endpoint.CHAT)


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    named = {name: more.pop(name) for name in ("name",) if name in more}
    return {"tool_calls": [{"index": index, **more, "function": {**named, "arguments": arguments}}]}


PIECES = [
    Started(5),
    Token("", 1, 0, call(0, "", id="c-1", type="function", name="f")),
    Token("", 2, 0, call(0, '{"a":')),
    Token("", 3, 0, call(1, "{}", id="c-2", type="function", name="g")),
    Token("", 4, 0, call(0, "1}")),
    Token("hel", 5, 1, None, {"content": [{"token": "hel", "logprob": -1.0, "top_logprobs": []}]}),
    Token("lo", 6, 1, None, {"content": [{"token": "lo", "logprob": -2.0, "top_logprobs": []}]}),
    Finished("tool_calls", 5, 6, ("tool_calls", "stop")),
]


@pytest.fixture
def collected() -> Collected:
    found = Collected()
    for piece in PIECES:
        found.note(piece)  # type: ignore[arg-type]
    return found


def test_tool_calls_and_texts_are_whole(collected: Collected) -> None:
    first, second = collected.choices()
    assert first["reason"] == "tool_calls"
    assert [each["function"] for each in first["delta"]["tool_calls"]] == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert (second["text"], second["reason"]) == ("hello", "stop")
    assert [each["token"] for each in second["logprobs"]["content"]] == ["hel", "lo"]
    assert (collected.input_tokens, collected.output_tokens, collected.is_plain) == (5, 6, False)


def test_the_official_client_reads_the_whole_and_the_pieces(collected: Collected) -> None:
    types: Any = pytest.importorskip("openai.types.chat")
    whole = types.ChatCompletion.model_validate(HEAD.body(collected.choices(), Finished("stop", 5, 6)))
    calls = whole.choices[0].message.tool_calls
    assert [(each.id, each.function.arguments) for each in calls] == [("c-1", '{"a":1}'), ("c-2", "{}")]
    assert whole.choices[0].message.content is None
    assert whole.choices[1].message.content == "hello"
    chunks = [HEAD.chunk(event) for event in PIECES if isinstance(event, Token)]
    assert all(types.ChatCompletionChunk.model_validate(chunk) for chunk in chunks)
    assert [each["choices"][0]["finish_reason"] for each in HEAD.last_chunks(PIECES[-1])] == ["tool_calls", "stop"]  # type: ignore[arg-type]


def test_a_kept_answer_gives_the_same_choices_again(collected: Collected) -> None:
    kept = json.loads(json.dumps(collected.choices()))
    again = Collected()
    for token in tokens_of(kept, 6):
        again.note(token)
    again.note(Finished("tool_calls", 5, 6, ("tool_calls", "stop")))
    assert again.choices() == kept


def test_a_choice_without_tokens_is_empty() -> None:
    found = Collected()
    found.note(Token("x", 1, 1))
    found.note(Finished("length", 2, 1, ("length", "length")))
    assert found.choices() == [{"text": "", "reason": "length"}, {"text": "x", "reason": "length"}]


def test_embeddings_are_items_in_order() -> None:
    found = Collected()
    for index in (1, 0):
        found.note(Token("", 0, index, {"embedding": [float(index)]}))
    body = AnswerHead("i", 7, "m", Endpoint.EMBEDDINGS).body(found.choices(), Finished("stop", 9, 0))
    assert [each["embedding"] for each in body["data"]] == [[0.0], [1.0]]
    assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


def test_other_fields_are_merged_by_their_kind() -> None:
    pieces = [{"reasoning": "a", "n": 1, "list": [1]}, {"reasoning": "b", "n": 2, "list": [2], "none": None}]
    assert merged(pieces) == {"reasoning": "ab", "n": 2, "list": [1, 2], "none": None}


def test_all_that_the_model_reads_counts_and_an_image_counts_as_one() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9999}}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, url]}]}
    plain = Request("m", Endpoint.CHAT, body, 1).prompt_bytes()
    assert IMAGE_BYTES < plain < IMAGE_BYTES + 30
    tools = [{"type": "function", "function": {"name": "f" * 1000}}]
    assert Request("m", Endpoint.CHAT, {**body, "tools": tools}, 1).prompt_bytes() > plain + 1000
    assert Request("m", Endpoint.COMPLETION, {"prompt": [1, 2, 3]}, 1).prompt_bytes() == 12


def test_a_request_that_an_older_version_stored_is_read() -> None:
    stored = {
        "model": "m", "chat": False, "prompt": "p", "messages": None, "max_tokens": 3, "temperature": 0.5, "seed": None,
        "stop": [], "stream": True, "include_usage": False, "app": "a", "stage": 1, "interaction": "",
    }  # fmt: skip
    expected = Request("m", Endpoint.COMPLETION, {"prompt": "p", "temperature": 0.5}, 3, stream=True, app="a", stage=1)
    assert request_from_json(json.dumps(stored)) == expected
