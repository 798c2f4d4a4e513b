"""The body that the server gets: the tenant's fields, and those that the gate decides. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dispatcher.model.requests import Endpoint, Request
from gpu_worker.engines.interface import EngineFacts, WorkOrder, own_order

PATHS: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "/chat/completions",
    Endpoint.COMPLETION: "/completions",
    Endpoint.EMBEDDINGS: "/embeddings",
}

TEMPLATE_TOKENS = 512
"""More than a chat template adds to a conversation."""


def server_body(
    request: WorkOrder, facts: EngineFacts, extra: Mapping[str, Any], *, continuous_usage: bool
) -> dict[str, Any]:
    """Return the body. `facts`: of the server's model. `extra`: more fields for this kind of server.

    A request without a limit gets `max_tokens` only if it certainly fits into the context. Otherwise the server decides
    what fits, and events.py ends the answer at the request's limit.
    """
    body = {**request.body, "model": facts.model, **extra}
    if request.endpoint is Endpoint.EMBEDDINGS:
        return body
    options = {"include_usage": True, **({"continuous_usage_stats": True} if continuous_usage else {})}
    body |= {"stream": True, "stream_options": options}
    if not request.is_open or _read_bytes(request) + TEMPLATE_TOKENS + request.max_tokens <= facts.context_tokens:
        body["max_tokens"] = request.max_tokens
    return {**body, "n": request.choices} if request.choices > 1 else body


def offered_tools(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tools that the model may call."""
    tools = body.get("tools")
    functions = [each.get("function") for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    names = [each.get("name") for each in functions if isinstance(each, dict)]
    return frozenset(name for name in names if isinstance(name, str))


def estimated_input_tokens(request: WorkOrder, bytes_per_token: float) -> int:
    """Return the prompt's tokens by its bytes, at least 1. The server reports the true count later."""
    return max(1, math.ceil(_read_bytes(request) / bytes_per_token))


def _read_bytes(request: WorkOrder) -> int:
    """Return the bytes of what the model reads: at least as many as it has tokens, without the template's."""
    return Request("", request.endpoint, request.body, None).prompt_bytes()


def probe_request(facts: EngineFacts) -> WorkOrder:
    """Return a request for one token, for the first endpoint that the server supports."""
    fields: dict[Endpoint, Any] = {
        Endpoint.CHAT: [{"role": "user", "content": "1"}],
        Endpoint.COMPLETION: "1",
        Endpoint.EMBEDDINGS: "1",
    }
    endpoint = next((each for each in fields if each.value in facts.capabilities), Endpoint.CHAT)
    return own_order("probe", "", {endpoint.prompt_field: fields[endpoint]}, 1, endpoint)


def answers(request: WorkOrder) -> int:
    """Return the number of choices of the answer: `choices` of each prompt. For embeddings, the number of inputs."""
    if request.endpoint is Endpoint.CHAT:
        return request.choices
    given = request.body.get(request.endpoint.prompt_field)
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    return (len(given) if several and given else 1) * request.choices
