"""The unmodified openai client, connected to a gate in memory."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from functions.http_api.app import make_app
from tests.support.world.memory_gate import Gate


def client_of(gate: Gate, tenant: str = "a") -> Any:
    """Return a client with the tenant's key. It is Any, because tests send what its types do not allow, too."""
    app = make_app()
    app.state.context = gate.context
    return openai.AsyncOpenAI(
        api_key=gate.keys[tenant],
        base_url="http://gate/v1",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(app)),
    )
