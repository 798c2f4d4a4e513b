"""OpenAI's answers as the official client reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.answers import DONE, KEEPALIVE, AnswerHead, Collected, event, usage
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, Token
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
