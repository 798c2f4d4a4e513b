"""The ids of responses and items lead back to the call, for any number of a call."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import call_id
from dispatcher.responses.items import input_id, is_response_id, output_id, response_id, response_of_item


@pytest.mark.parametrize("number", [0, 9, 10, 35, 36, 10**12])
def test_an_item_leads_to_its_response(number: int) -> None:
    call = call_id("abc123def456", number)
    name = response_id(call)
    assert is_response_id(name)
    for kind in ("message", "function_call", "reasoning", "function_call_output"):
        assert response_of_item(input_id(kind, call, 12)) == name
        assert response_of_item(output_id(kind, call, 0)) == name


@pytest.mark.parametrize("name", ["", "resp_", "resp_a", "resp_a-1#2", "resp_a-1/..", "msg_a-1_0", "x" * 1000])
def test_other_names_are_no_response(name: str) -> None:
    assert not is_response_id(name)


@pytest.mark.parametrize("name", ["", "msg_1", "resp_a-1", "msg_a-1", "msg_a-1_x", "msg_a-1_0_0_0"])
def test_other_names_are_no_item(name: str) -> None:
    assert response_of_item(name) is None
