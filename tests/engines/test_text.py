"""A model's text in pieces: characters, stop strings and tool calls, however it is split."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.generation import Detokenizer, StopMatcher, ToolCallParser

words = st.text(alphabet="abc", max_size=30)


@given(
    text=words,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30)),
)
def test_text_ends_at_the_first_stop_string_however_it_is_cut_up(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(tuple(stops))
    sent = ""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in pairwise(places):
        sent += matcher.feed(text[begin:end])
        assert all(stop not in sent for stop in stops), "never more than may be sent"
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    assert matcher.stopped == bool(found)
    if not found:
        assert sent + matcher.flush() == text
    else:
        ends_first = min((at + len(stop) for stop in stops if (at := text.find(stop)) >= 0), default=0)
        assert text.startswith(sent)
        assert len(sent) <= ends_first


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(("END",))
    assert [matcher.feed(piece) for piece in ("abcE", "N", "x", "EN", "D more")] == ["abc", "", "ENx", "", ""]
    assert matcher.stopped
    assert matcher.feed("nothing") == ""
    assert matcher.flush() == ""


def decode_bytes(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


@given(text=st.text(max_size=40))
def test_characters_come_out_whole_and_none_is_lost(text: str) -> None:
    """One token a byte: the worst case."""
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_character_do_not_hold_up_the_rest() -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.feed(byte) for byte in b"\xff" * 20 + b"ok"]
    assert "".join(pieces).endswith("ok")
    assert sum(map(bool, pieces)) >= 3


def test_an_unfinished_character_at_the_end_becomes_a_replacement() -> None:
    detokenizer = Detokenizer(decode_bytes)
    assert [detokenizer.feed(byte) for byte in "a€".encode()[:-1]] == ["a", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    longest = 0

    def decode(tokens: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode_bytes(tokens)

    detokenizer = Detokenizer(decode)
    for byte in b"x" * 1_000:
        detokenizer.feed(byte)
    assert longest <= 2 * Detokenizer.PENDING_MAX


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
