"""The whole answer of a call as OpenAI's body: the same if it is sent at once, or kept and sent later."""

from __future__ import annotations

from typing import Any

from dispatcher.model.answers import AnswerHead, Collected
from dispatcher.operations.calls.call import Call


def head_of_call(call: Call) -> AnswerHead:
    return AnswerHead(call.id, int(call.created_at), call.request.model, call.request.endpoint)


def rendered(call: Call, collected: Collected) -> dict[str, Any]:
    return head_of_call(call).body(collected.choices(), collected.finished)
