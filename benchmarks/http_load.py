"""A load generator over HTTP/1.1: open arrivals, kept connections, no more work than the figures need.

It writes prepared bytes and reads heads and lengths itself, so that one core sends more than a thousand calls a second.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

HEAD_END = b"\r\n\r\n"
ANSWER_S = 60.0
IDLE_S = 4.0
"""Below uvicorn's 5 s, after which the front closes an idle connection."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One call. `status` 0: no answer. Times are monotonic seconds, the others seconds from `sent_at`."""

    tenant: str
    sent_at: float
    head_s: float
    """Until the head: of a stream, its first event."""
    end_s: float
    status: int
    code: str = ""
    retry_after: str = ""
    position: int = 0
    """The place in the tenant's queue that the head names; 0: none."""

    @property
    def is_refusal(self) -> bool:
        return self.status == 429


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant's prepared request. `headers`: more of them, as (name, value)."""

    tenant: str
    body: bytes
    key: str
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, tenant: str, key: str, *, stream: bool = False, **fields: object) -> Caller:
        return cls(tenant, json.dumps({**fields, "stream": stream}).encode(), key)


class Front:
    """The connections to one front. Each carries one call at a time and is kept."""

    def __init__(self, base_url: str, path: str = "/completions") -> None:
        parts = urlsplit(base_url)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 80, parts.path + path
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        """Since when each is idle (monotonic)."""
        self._requests: dict[Caller, bytes] = {}

    async def call(self, caller: Caller) -> Answer:
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._call(caller, sent_at)
        except (OSError, EOFError, TimeoutError) as error:
            took_s = time.monotonic() - sent_at
            return Answer(caller.tenant, sent_at, took_s, took_s, 0, type(error).__name__)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[2].close()

    async def _call(self, caller: Caller, sent_at: float) -> Answer:
        reader, writer = await self._connection()
        try:
            writer.write(self._request(caller))
            status, headers = _head(await reader.readuntil(HEAD_END))
            head_s = time.monotonic() - sent_at
            body = await _body(reader, headers)
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        code = "" if status == 200 else json.loads(body)["error"]["code"]
        position = int(headers.get("x-headgate-queue-position", 0))
        end_s = time.monotonic() - sent_at
        return Answer(caller.tenant, sent_at, head_s, end_s, status, code, headers.get("retry-after", ""), position)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an idle connection that the front does not close now, or a new one."""
        while self._idle:
            since, reader, writer = self._idle.pop()
            if time.monotonic() < since + IDLE_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    def _request(self, caller: Caller) -> bytes:
        """Return the request's bytes."""
        made = self._requests.get(caller)
        if made is None:
            lines = (
                f"POST {self._path} HTTP/1.1",
                f"host: {self._host}:{self._port}",
                f"authorization: Bearer {caller.key}",
                "content-type: application/json",
                f"content-length: {len(caller.body)}",
                *(f"{name}: {value}" for name, value in caller.headers),
            )
            made = self._requests[caller] = "\r\n".join(lines).encode() + HEAD_END + caller.body
        return made


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(parts)


class Load:
    """Calls to random fronts. `answers`: of all calls that are over."""

    def __init__(self, urls: Sequence[str], seed: int) -> None:
        self.answers: list[Answer] = []
        self._fronts = [Front(url) for url in urls]
        self._random = Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def arrive(self, callers: Sequence[Caller], calls_per_s: float, seconds: float) -> None:
        """Send calls of random callers as a Poisson process, whether or not earlier ones are answered."""
        at, until = time.monotonic(), time.monotonic() + seconds
        while (at := at + self._random.expovariate(calls_per_s)) < until:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            self._send(self._random.choice(callers))

    async def keep_busy(self, callers: Sequence[Caller], at_a_time: int, seconds: float) -> None:
        """Send calls, so many at a time that each follows an earlier one."""
        until = time.monotonic() + seconds
        await asyncio.gather(
            *(
                self._repeat(callers[number % len(callers)], lambda: time.monotonic() < until)
                for number in range(at_a_time)
            )
        )

    async def finish(self) -> None:
        """Wait until all calls are answered."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _repeat(self, caller: Caller, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            await self._call(caller)

    def _send(self, caller: Caller) -> None:
        task = asyncio.ensure_future(self._call(caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, caller: Caller) -> None:
        self.answers.append(await self._random.choice(self._fronts).call(caller))
