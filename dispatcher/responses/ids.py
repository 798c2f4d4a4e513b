"""The ids of responses and of their items. Each has the id of its call, so an item leads to its response. Pure.

resp_<call>        a response
msg_<call>_<n>     an output item: a message (`fc` a function call, `rs` reasoning)
msg_<call>_i<n>    an input item without an id of its own (`fco` is the output of a function call)
"""

from __future__ import annotations

import re

_CALL = r"[A-Za-z0-9]{1,64}-[0-9a-z]{1,20}"
_RESPONSE = re.compile(rf"resp_({_CALL})")
_ITEM = re.compile(rf"[a-z]+_({_CALL})_i?[0-9]{{1,6}}")
_PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def response_id(call_id: str) -> str:
    return f"resp_{call_id}"


def is_response_id(name: str) -> bool:
    return _RESPONSE.fullmatch(name) is not None


def output_id(kind: str, call_id: str, index: int) -> str:
    """Return the id of an output item. `kind` is its type."""
    return f"{_PREFIX[kind]}_{call_id}_{index}"


def input_id(kind: str, call_id: str, index: int) -> str:
    """Return the id of an input item. `kind` is its type."""
    return f"{_PREFIX[kind]}_{call_id}_i{index}"


def response_of_item(item_id: str) -> str | None:
    """Return the id of the response that an item belongs to, or None if the id is not one of headgate's."""
    found = _ITEM.fullmatch(item_id)
    return None if found is None else response_id(found[1])
