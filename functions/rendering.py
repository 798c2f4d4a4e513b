"""The whole answer of an invocation as OpenAI's body: the same if it is sent, kept, or made by the SQS consumer."""

from __future__ import annotations

import json

from dispatcher.model.answers import AnswerHead
from dispatcher.model.old_invocation import Invocation, Result
from dispatcher.old_operations.execute import Collected, Render


def rendering(invocation: Invocation, *, chat: bool) -> Render:
    head = AnswerHead(invocation.id, int(invocation.arrived_at), invocation.model, chat)
    return lambda collected: rendered(head, collected)


def rendered(head: AnswerHead, collected: Collected) -> Result:
    body = head.body(collected.text, collected.reason, collected.input_tokens, collected.output_tokens)
    return Result(200, json.dumps(body))
