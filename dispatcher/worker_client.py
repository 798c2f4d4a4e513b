"""The gate's client for workers, over HTTP: a signed work order out, events back as they are generated."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import httpx

from dispatcher.errors import WorkerFailed
from dispatcher.grants import GRANT_TTL_S, Grant, digest, sign
from dispatcher.ports import Clock, Worker
from dispatcher.work import WorkEvent, WorkFinished, WorkOrder, WorkRefused, WorkStarted, WorkToken

CONNECT_S = 2.0
SILENCE_S = 10.0
"""A worker says that it is alive every 2 s: one that says nothing for this long is dead, or cut off."""
CONNECTIONS_MAX = 512


class HttpWorkerClient:
    """One pool of connections to all workers; made in the event loop that uses it."""

    def __init__(self, *, secret: bytes, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._secret = secret
        self._clock = clock
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=64),
            transport=transport,
            trust_env=False,
        )

    async def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Stream an execution. Closing the generator closes the connection, which aborts the work.

        Raises WorkerFailed where the worker cannot be reached, breaks off, or falls silent.
        """
        body = json.dumps(asdict(order), separators=(",", ":")).encode()
        request = self._http.build_request(
            "POST", f"{worker.url}/v1/execute", content=body, headers=self._headers(worker, order, body)
        )
        try:
            async with aclosing(self._events(request)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, WorkFinished | WorkRefused):
                        return
        except (httpx.HTTPError, ValueError) as error:
            raise WorkerFailed(f"The worker cannot be used: {type(error).__name__}.") from None
        raise WorkerFailed()

    async def close(self) -> None:
        await self._http.aclose()

    async def _events(self, request: httpx.Request) -> AsyncGenerator[WorkEvent, None]:
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code != 200:
                yield _refusal(response.status_code, await response.aread())
                return
            async for line in response.aiter_lines():
                event = _event(json.loads(line))
                if event is not None:
                    yield event
        finally:
            await response.aclose()

    def _headers(self, worker: Worker, order: WorkOrder, body: bytes) -> dict[str, str]:
        grant = Grant(
            worker=worker.id,
            tenant=order.tenant,
            invocation=order.invocation,
            attempt=order.attempt,
            slot=order.slot,
            expires_at=self._clock.now() + GRANT_TTL_S,
            body_digest=digest(body),
        )
        return {"authorization": f"Bearer {sign(grant, self._secret)}", "content-type": "application/json"}


def _event(said: dict[str, Any]) -> WorkEvent | None:
    """None for what is only a sign of life. Raises ValueError for what no worker says."""
    match said.get("event"):
        case "alive":
            return None
        case "started":
            return WorkStarted(said["input_tokens"])
        case "token":
            return WorkToken(said["text"], said["output_tokens"])
        case "finished":
            return WorkFinished(said["reason"], said["input_tokens"], said["output_tokens"])
        case "refused":
            return WorkRefused(said["status"], said["code"], said["message"])
    raise ValueError("not an event")


def _refusal(status: int, body: bytes) -> WorkRefused:
    try:
        said = json.loads(body)
        return WorkRefused(status, str(said["code"]), str(said["message"]))
    except (ValueError, KeyError, TypeError):
        return WorkRefused(status, "worker_refused", "The worker refused the request.")
