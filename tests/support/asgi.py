"""A caller of an ASGI app as a server would be: it reads as it is sent, may read slowly, and may hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

App = Any


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object, and nothing beside it."""
        body = self.json()
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        return dict(body["error"])

    @property
    def events(self) -> list[Any]:
        """The data of the server-sent events, `[DONE]` as it is. Comments are left out."""
        parts = [part for part in self.body.decode().split("\n\n") if part and not part.startswith(":")]
        assert all(part.startswith("data: ") for part in parts), parts
        data = [part.removeprefix("data: ") for part in parts]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def semantic_events(self) -> list[Any]:
        """The data of the events of a streamed response. Each is named by its type, and numbered."""
        parts = [part for part in self.body.decode().split("\n\n") if part and not part.startswith(":")]
        pairs = [part.removeprefix("event: ").split("\ndata: ") for part in parts]
        data = [json.loads(text) for _, text in pairs]
        assert [name for name, _ in pairs] == [each["type"] for each in data]
        assert [each["sequence_number"] for each in data] == list(range(len(data)))
        return data


class Call:
    """One request under way. `spec_version` as uvicorn announces it."""

    def __init__(
        self,
        app: App,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        body: bytes = b"",
        query: str = "",
        spec_version: str = "2.3",
    ) -> None:
        self.reply = Reply()
        self.reading = asyncio.Event()
        """Cleared: the caller does not read, and sending waits."""
        self.reading.set()
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (name.lower().encode(), each.encode("latin-1"))
                for name, value in (headers or {}).items()
                for each in ([value] if isinstance(value, str) else value)
            ],
            "server": ("gate", 80),
            "client": ("caller", 1),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def hang_up(self) -> None:
        self._gone.set()
        self.reading.set()

    async def finished(self) -> Reply:
        await self.task
        return self.reply

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if not self.reading.is_set():
            await self.reading.wait()
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.reply.status = message["status"]
            self.reply.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.reply.body += message.get("body", b"")


class Caller:
    """A tenant's client: its key goes with every request."""

    def __init__(self, app: App, key: str | None) -> None:
        self.app = app
        self.key = key

    def start(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        query: str = "",
        spec_version: str = "2.3",
        **headers: str | Sequence[str],
    ) -> Call:
        sent = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            named.setdefault("authorization", f"Bearer {self.key}")
        return Call(self.app, method, path, headers=named, body=sent, query=query, spec_version=spec_version)

    async def get(self, path: str, **headers: Any) -> Reply:
        return await self.start("GET", path, **headers).finished()

    async def post(self, path: str, body: Any = None, *, raw: bytes | None = None, **headers: Any) -> Reply:
        return await self.start("POST", path, body, raw=raw, **headers).finished()

    async def delete(self, path: str, **headers: Any) -> Reply:
        return await self.start("DELETE", path, **headers).finished()
