"""One server of which each process runs this version of the code or an earlier one, under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from pathlib import Path

import openai
import pytest

from headgate.machine.fleet import FRONT, Member
from headgate.machine.processes import Child
from headgate.serve.server import STOP_GRACE_S, ServeAddresses, ServeOptions, Server
from tests.support.hang_guard import HANG_S

ROOT = Path(__file__).parents[3]
EARLIER = (Path(__file__).parent / "earlier_commit.txt").read_text("utf-8").strip()
"""The commit of the earlier version: one that was released, with the format before this one's."""
TOKENS = 40
PAUSE_S = 0.2
"""Between two requests of a client."""


def unpack_earlier(folder: Path) -> Path:
    """Return a folder with the code of the earlier version. Skips the test where the repository has no history; in CI
    the test fails then, unless the clone is a shallow one."""
    archived = subprocess.run(("git", "archive", EARLIER), cwd=ROOT, capture_output=True, check=False)  # noqa: S607
    if archived.returncode:
        shallow = subprocess.run(
            ("git", "rev-parse", "--is-shallow-repository"),  # noqa: S607
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if os.environ.get("CI") and shallow.stdout.strip() == "false":
            pytest.fail(f"commit {EARLIER} is not in this repository")
        pytest.skip(f"commit {EARLIER} is not in this repository: a clone with its history is needed")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class MixedServer(Server):
    """A server that begins with the earlier version. `update` and `take_back` exchange one process after the other."""

    def __init__(self, options: ServeOptions, earlier: Path) -> None:
        super().__init__(options, lambda _: None)
        self.deaths: list[str] = []
        self._trees = {True: earlier, False: ROOT}
        self._runs_earlier: dict[str, bool] = {}
        self._spawn = self._children.spawn_python
        self._children.spawn_python = self._spawned  # type: ignore[method-assign]
        self.out_of_service: set[str] = set()
        """The fronts to which a load balancer sends no further clients."""
        self.clients: Counter[str] = Counter()
        """The clients that use each front now. A deployment takes a front out of service before it stops it."""

    async def _spawned(self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str]) -> Child:
        tree = self._trees[self._runs_earlier.setdefault(name, True)]
        own = {**environment, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}  # and not the folder of this process
        return await self._spawn(name, arguments, environment=own)

    def _died(self, child: Child) -> None:
        self.deaths.append(child.ending())
        super()._died(child)

    @property
    def members(self) -> list[Member]:
        assert self._fleet is not None
        return list(self._fleet.members)

    def front_urls(self) -> list[str]:
        urls = [member.url or "" for member in self.members if member.role == FRONT]
        return [f"{url}/v1" for url in urls if url not in self.out_of_service]

    async def exchange(self, member: Member, *, earlier: bool) -> None:
        """Stop a process as a deployment does, and start the other version in its place."""
        assert self._fleet is not None
        self._runs_earlier[member.child.name] = earlier
        if member.url is not None and member.role == FRONT:
            self.out_of_service.add(member.url)
            while self.clients[f"{member.url}/v1"]:
                await asyncio.sleep(0.05)
        await member.child.stop(STOP_GRACE_S)
        started = await self._fleet.restart(member)
        self.out_of_service.discard(started.url or "")

    async def exchange_all(self, *, earlier: bool) -> None:
        for member in self.members:
            await self.exchange(member, earlier=earlier)

    def versions(self) -> Counter[bool]:
        """Return how many processes run the earlier version (True) and this one."""
        return Counter(self._runs_earlier.values())


@dataclass
class Load:
    """Clients that send one request after another: streamed, whole, and under an idempotency key."""

    server: MixedServer
    keys: Mapping[str, str]
    model: str
    answered: Counter[str] = field(default_factory=Counter)
    """Requests that were answered whole, by tenant."""
    tokens: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _is_over: bool = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for tenant in self.keys:
                for kind in (self._streamed, self._whole, self._keyed):
                    group.create_task(self._repeat(tenant, kind))
            try:
                yield
            finally:
                self._is_over = True

    async def progress(self) -> None:
        """Wait until each tenant has got further answers."""
        before = Counter(self.answered)
        async with asyncio.timeout(HANG_S):
            while any(self.answered[tenant] <= before[tenant] + 3 for tenant in self.keys) and not self.failures:
                await asyncio.sleep(0.1)

    async def _repeat(self, tenant: str, kind: object) -> None:
        while not self._is_over:
            await asyncio.sleep(PAUSE_S)
            number = next(self._numbers)
            urls = self.server.front_urls()
            url = urls[number % len(urls)]
            client = openai.AsyncOpenAI(base_url=url, api_key=self.keys[tenant], max_retries=0, timeout=HANG_S)
            self.server.clients[url] += 1
            try:
                async with client:
                    tokens = await kind(client, f"{tenant}-{number}")  # type: ignore[operator]
            except openai.APIError as error:
                self.failures.append(f"{getattr(kind, '__name__', '')} of {tenant}: {error!r}"[:300])
                await asyncio.sleep(0.5)
                continue
            finally:
                self.server.clients[url] -= 1
            self.answered[tenant] += 1
            self.tokens[tenant] += tokens

    async def _streamed(self, client: openai.AsyncOpenAI, _: str) -> int:
        chunks = await client.completions.create(
            model=self.model, prompt="x", max_tokens=TOKENS, stream=True, stream_options={"include_usage": True}
        )
        found = [chunk.usage.completion_tokens async for chunk in chunks if chunk.usage is not None]
        return found[0]

    async def _whole(self, client: openai.AsyncOpenAI, _: str) -> int:
        return _generated(await client.completions.create(model=self.model, prompt="x", max_tokens=TOKENS))

    async def _keyed(self, client: openai.AsyncOpenAI, key: str) -> int:
        """Send a request twice under one key: the second gets the answer of the first, and costs nothing."""
        headers = {"idempotency-key": key}
        answers = [
            await client.completions.create(model=self.model, prompt="x", max_tokens=TOKENS, extra_headers=headers)
            for _ in range(2)
        ]
        if len({answer.id for answer in answers}) != 1:
            self.failures.append(f"two answers under one key: {[answer.id for answer in answers]}")
        return _generated(answers[0])


def _generated(answer: openai.types.Completion) -> int:
    assert answer.usage is not None
    return answer.usage.completion_tokens


__all__ = ["EARLIER", "Load", "MixedServer", "ServeAddresses", "unpack_earlier"]
