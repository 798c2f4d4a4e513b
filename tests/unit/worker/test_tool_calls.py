"""Tool calls in a model's text, however it is split into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.generation import ToolCallParser


def parsed(pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    parser = ToolCallParser("id")
    found = [*(parser.feed(piece) for piece in pieces), parser.flush()]
    return "".join(each.text for each in found), [call for each in found for call in each.calls]


def written(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@given(st.data(), st.sampled_from(["", "Let me see. ", "a < b, <tool "]), st.lists(st.sampled_from("ab"), max_size=3))
def test_calls_are_found_and_text_is_kept(data: st.DataObject, text: str, names: list[str]) -> None:
    whole = text + "\n".join(written(name, city="Delft", days=[1, {"a": "</b>"}]) for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    sent, calls = parsed(pieces)
    assert sent == text
    assert [call["function"]["name"] for call in calls] == names
    assert [call["index"] for call in calls] == list(range(len(names)))
    assert len({call["id"] for call in calls}) == len(names)
    for call in calls:
        assert json.loads(call["function"]["arguments"]) == {"city": "Delft", "days": [1, {"a": "</b>"}]}


NO_CALLS = [
    "<tool_call>",
    "<tool_call>{}</tool_call>",
    "<tool_call>not JSON</tool_call> and more",
    '<tool_call>{"name": 7}</tool_call>',
    '<tool_call>{"name": "a", "arguments": "text"}</tool_call>',
    '<tool_call>["name"]</tool_call>',
    "<tool_call>" + "[" * 5_000 + "</tool_call>",
    '<tool_call>{"name": "a", "arguments": {}}',
    "</tool_call>",
    "<tool_cal",
]


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parsed([text]) == (text, [])
    assert parsed([*text]) == (text, [])


def test_text_without_a_mark_is_sent_at_once() -> None:
    parser = ToolCallParser("id")
    assert [parser.feed(piece).text for piece in ("one ", "two <", "three")] == ["one ", "two ", "<three"]
