"""A server as its client sees it: how it is reached, what differs from server to server, what GET /v1/models says of
it, and the body that it gets: the tenant's fields, and those that the gate decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from dispatcher.model.fleet import TEXT, Capability
from dispatcher.model.requests import Endpoint, Request
from gpu_worker.engines.interface import EngineFacts, WorkOrder
from gpu_worker.engines.openai.normal.usage import is_count

CONNECT_S = 5.0
SILENCE_S = 300.0
"""A server sends nothing while it computes a long prompt, and while the request waits in its own queue."""
_WAIT_S = 600.0
_PAUSE_S = 0.5
_BYTES_PER_TOKEN = 4.0
"""The bytes of a token of English text with the vocabularies of today's models. Only estimates use it: the server
reports the true count."""


def _no_fields(_request: WorkOrder) -> Mapping[str, Any]:
    return {}


def _accept_choice(_choice: Mapping[str, Any]) -> None:
    """Accept every choice."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's address and its features.

    `url`: with the path before `/chat/completions`, usually `/v1`. `key`: sent as a bearer token. `model`: its name
    there; None: the server's only model. `context_tokens`: None: the server reports it. `capabilities`: None: a default
    by the kind of server (_BY_OWNER).

    `continuous_usage`: the server reports the usage in every chunk if `stream_options` asks for it; None: if the server
    is known to. `silence_s`: an answer fails after this time without a byte. `wait_s`: `start` fails after this time
    without a usable answer; `pause_s`: between two tries.

    Hooks: `transport` makes the HTTP transport, such as one with a Unix socket. `fields` returns more fields for the
    server's body. `check_choice` reads each choice of a chunk, and may raise an EngineError to end the request.
    """

    url: str
    key: str | None = None
    model: str | None = None
    context_tokens: int | None = None
    capabilities: frozenset[str] | None = None
    continuous_usage: bool | None = None
    bytes_per_token: float = _BYTES_PER_TOKEN
    max_loras: int | None = None
    """The LoRA adapters that it holds at once; None: unknown."""
    connect_s: float = CONNECT_S
    silence_s: float = SILENCE_S
    wait_s: float = _WAIT_S
    pause_s: float = _PAUSE_S
    probe: bool = True
    """Whether `start` waits until the server has generated a token: a server that hangs still reports its models."""
    transport: Callable[[], httpx.AsyncBaseTransport] | None = None
    fields: Callable[[WorkOrder], Mapping[str, Any]] = _no_fields
    check_choice: Callable[[Mapping[str, Any]], None] = _accept_choice


_CONTEXT_MAX = 100_000_000
_USUAL = TEXT | {Capability.SAMPLING, Capability.TOOLS, Capability.STRUCTURED}
"""What all of today's servers for chat models support."""
_ALL_TEXT = _USUAL | {Capability.CHOICES, Capability.LOGPROBS, Capability.REASONING}
_BY_OWNER: dict[str, frozenset[str]] = {
    "vllm": _ALL_TEXT | {Capability.VLLM},
    "sglang": _ALL_TEXT | {Capability.LENGTH},
}
"""The capabilities of a server by the `owned_by` of its models. The `continuous_usage_stats` of both servers are the
tokens of each choice."""
_NAMES_MAX = 10


class ServerFacts(NamedTuple):
    facts: EngineFacts
    continuous_usage: bool


def server_facts(answer: dict[str, Any], options: ServerOptions) -> ServerFacts:
    """Return the facts of the chosen model. Raises ValueError, whose message says what to do.

    If the options have the name and the context length, the list need not have the model: some servers list others than
    those that they load.
    """
    data = answer.get("data")
    models = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    name = options.model or _only_name(models)
    card = next((each for each in models if each.get("id") == name), {})
    if not card and options.context_tokens is None:
        raise ValueError(f"the server has no model {name!r}; it has {_names(models)}: choose one with --model")
    owner = card.get("owned_by")
    known = _BY_OWNER.get(owner) if isinstance(owner, str) else None
    capabilities = options.capabilities or known or _USUAL
    found = frozenset(map(str, capabilities))
    facts = EngineFacts(name, _context(card, options), options.bytes_per_token, found, max_loras=options.max_loras)
    continuous = options.continuous_usage
    return ServerFacts(facts, known is not None if continuous is None else continuous)


def _only_name(models: list[dict[str, Any]]) -> str:
    names = [each["id"] for each in models if isinstance(each.get("id"), str)]
    if len(names) != 1:
        raise ValueError(f"the server has {_names(models)}: choose one with --model")
    return str(names[0])


def _names(models: list[dict[str, Any]]) -> str:
    names = sorted(str(each.get("id"))[:100] for each in models)
    shown = ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
    return f"{len(names)} models ({shown})" if names else "no models"


def _context(card: dict[str, Any], options: ServerOptions) -> int:
    """Return the context length: the option, or `max_model_len` (vLLM, SGLang), or `meta.n_ctx` (llama.cpp)."""
    if options.context_tokens is not None:
        return options.context_tokens
    meta = card.get("meta")
    for found in (card.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if is_count(found, _CONTEXT_MAX) and found:
            return found
    raise ValueError("the server does not report its context length: set it with --context-tokens")


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
    """Return the body. `facts`: of the server's model; the body names an adapter of it if the request does. `extra`:
    more fields for this kind of server.

    A request without a limit gets `max_tokens` only if it certainly fits into the context. Otherwise the server decides
    what fits, and events.py ends the answer at the request's limit.
    """
    named = request.terms.model
    body = {**request.body, "model": named if facts.has_adapter(named) else facts.model, **extra}
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


def answers(request: WorkOrder) -> int:
    """Return the number of choices of the answer: `choices` of each prompt. For embeddings, the number of inputs."""
    if request.endpoint is Endpoint.CHAT:
        return request.choices
    given = request.body.get(request.endpoint.prompt_field)
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    return (len(given) if several and given else 1) * request.choices
