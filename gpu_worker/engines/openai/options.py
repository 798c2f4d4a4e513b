"""How a server is reached, and what differs from server to server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from gpu_worker.engines.interface import WorkOrder

CONNECT_S = 5.0
SILENCE_S = 300.0
"""A server sends nothing while it computes a long prompt, and while the request waits in its own queue."""
WAIT_S = 600.0
PAUSE_S = 0.5
BYTES_PER_TOKEN = 4.0
"""The bytes of a token of English text with the vocabularies of today's models. Only estimates use it: the server
reports the true count."""


def no_fields(_request: WorkOrder) -> Mapping[str, Any]:
    return {}


def accept_choice(_choice: Mapping[str, Any]) -> None:
    """Accept every choice."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's address and its features.

    `url`: with the path before `/chat/completions`, usually `/v1`. `key`: sent as a bearer token. `model`: its name
    there; None: the server's only model. `context_tokens`: None: the server reports it. `capabilities`: None: a default
    by the kind of server (server_facts.py).

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
    bytes_per_token: float = BYTES_PER_TOKEN
    connect_s: float = CONNECT_S
    silence_s: float = SILENCE_S
    wait_s: float = WAIT_S
    pause_s: float = PAUSE_S
    probe: bool = True
    """Whether `start` waits until the server has generated a token: a server that hangs still reports its models."""
    transport: Callable[[], httpx.AsyncBaseTransport] | None = None
    fields: Callable[[WorkOrder], Mapping[str, Any]] = no_fields
    check_choice: Callable[[Mapping[str, Any]], None] = accept_choice
