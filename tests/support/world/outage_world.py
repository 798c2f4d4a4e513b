"""Fronts with OpenAI's routes over real links and gate processes, in virtual time, and a table that goes away."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, NoReturn

from dispatcher.model.commands import Command, Offer, Outcome
from dispatcher.model.errors import AnsweredError, StoreUnavailable
from dispatcher.model.facts import Accepted, Ended
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.directory import new_key
from dispatcher.operations.pools import Pool, Pools
from dispatcher.shard.codec import decode_entry
from functions.http_api.app import make_app
from functions.invoke.handler import invoke
from functions.result.handler import result
from tests.support.asgi import Caller
from tests.support.world.memory_gate import MemoryFiles
from tests.support.world.memory_store import WRITES
from tests.support.world.processes import SHARD, World, report
from tests.support.world.worker_client import ScriptedWorkers

Fault = Literal["writes", "gone", "silent", "deaf", "throttled"]
"""The table refuses writes; refuses every request; answers none, and applies none; loses the replies to writes; or
refuses nine of ten requests."""
FAULTS: tuple[Fault, ...] = ("writes", "gone", "silent", "deaf")
FRONT, WORKER = "front", "worker"
SLOTS = 200
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
PROMPT = {"model": "m", "prompt": "hello", "max_tokens": 2}
LONG = "r-long"
"""The key of a detached call that runs all the time."""
EDGE = "edge"
UPLOAD = (
    f'--{EDGE}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    f'--{EDGE}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{{}}\r\n--{EDGE}--\r\n'
).encode()


class Got(NamedTuple):
    """What a caller got: the status (of lambda.invoke: of the error that is raised), and after how many seconds."""

    kind: str
    began: float
    status: int
    code: str
    seconds: float
    retry_after: str
    text: str = ""
    """The answer of the engine, if there is one."""


@dataclass
class WorkerGate:
    """The gate as the scripted workers see it: the link of their machine."""

    world: World
    do: Callable[[Command], Awaitable[Outcome]]
    on_offer: Callable[[Offer], None] = lambda _: None
    shard: Any = field(default_factory=lambda: SimpleNamespace(state=SimpleNamespace(calls={})))


class OutageWorld:
    """`gates`: the gate processes; none: the front decides alone. Call `start` first."""

    def __init__(self, gates: int, seed: int = 1) -> None:
        self.world = World(seed)
        self.gate_names = [f"g{number}" for number in range(1, gates + 1)]
        self.got: list[Got] = []
        self.kept = ""
        """The id of a kept response."""
        self._names = 0

    async def start(self) -> None:
        world = self.world
        for name in self.gate_names:
            await world.gate(name)
            await asyncio.sleep(0.3)
        link = world.link(WORKER)
        self.workers = ScriptedWorkers(WorkerGate(world, self._until_written(link.do)), world.clock)  # type: ignore[arg-type]
        world.host(WORKER).spawn(self._heartbeats(link.do))
        self.context = Context(
            Pools(Pool(world.link(FRONT), world.clock)), store=world.store(FRONT), workers=self.workers,
            launcher=world.launches, clock=world.clock, ids=world.ids, files=MemoryFiles(),
        )  # fmt: skip
        store = world.store("administrator")
        await store.put_tenant(Tenant("a", queue_items_max=10_000), expected_version=None)
        self.key, record = new_key("a", 2 * world.ids.secret())
        await store.put_key(record)
        app = make_app()
        app.state.context = self.context
        self.caller = Caller(app, self.key)
        await asyncio.sleep(1.0)
        long = {"api_key": self.key, **PROMPT, "max_tokens": 4000}
        self._long = world.host(FRONT).spawn(invoke(self.context, long, LONG, 10_000.0))
        await asyncio.sleep(0.5)
        kept = await world.on(FRONT, self.caller.post("/v1/responses", {"model": "m", "input": "hello"}))
        self.kept = str(kept.json()["id"])
        for kind in self.kinds():
            await self.call(kind)
        self.got.clear()

    async def close(self) -> None:
        """End the call that runs all the time."""
        self._long.cancel()
        await asyncio.wait({self._long})

    def _until_written(self, do: Callable[[Command], Awaitable[Outcome]]) -> Callable[[Command], Awaitable[Outcome]]:
        async def until_written(command: Command) -> Outcome:
            while True:
                try:
                    return await do(command)
                except StoreUnavailable:
                    await asyncio.sleep(0.5)

        return until_written

    async def _heartbeats(self, do: Callable[[Command], Awaitable[Outcome]]) -> NoReturn:
        while True:
            try:
                capabilities = ("chat", "completion", "embeddings")
                beat = report("w", SLOTS, tuple(self.workers.live))._replace(capabilities=capabilities)
                await do(beat)
            except StoreUnavailable:
                pass
            await asyncio.sleep(1.0)

    # Faults

    def break_table(self, fault: Fault) -> None:
        for faults in self.world.faults.values():
            faults.only = WRITES if fault in ("writes", "deaf") else frozenset()
            faults.away, faults.is_deaf = fault in ("writes", "gone"), fault == "deaf"
            faults.fails = 0.9 if fault == "throttled" else 0.0
            faults.stalled = asyncio.Event() if fault == "silent" else None

    def mend_table(self) -> None:
        for faults in self.world.faults.values():
            faults.away, faults.is_deaf, faults.only, faults.fails = False, False, frozenset(), 0.0
            if faults.stalled is not None:
                faults.stalled.set()
                faults.stalled = None

    # Calls

    def kinds(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        post, get = self.caller.post, self.caller.get
        self._names += 1
        name = f"k{self._names}"
        event = {"api_key": self.key, **PROMPT}
        return {
            "chat, whole": lambda: post("/v1/chat/completions", CHAT),
            "chat, streamed": lambda: post("/v1/chat/completions", {**CHAT, "stream": True}),
            "chat with an idempotency key": lambda: post("/v1/chat/completions", CHAT, idempotency_key=name),
            "completion": lambda: post("/v1/completions", PROMPT),
            "embeddings": lambda: post("/v1/embeddings", {"model": "m", "input": "hello"}),
            "response, kept": lambda: post("/v1/responses", {"model": "m", "input": "hello", "max_output_tokens": 2}),
            "GET of a kept response": lambda: get(f"/v1/responses/{self.kept}"),
            "list of files": lambda: get("/v1/files"),
            "upload of a file": lambda: post(
                "/v1/files", raw=UPLOAD, content_type=f"multipart/form-data; boundary={EDGE}"
            ),
            "list of batches": lambda: get("/v1/batches"),
            "usage": lambda: get("/v1/usage"),
            "lambda.invoke (sync, Event)": lambda: invoke(self.context, event, f"r-{name}", 60.0),
            "result of a detached call": lambda: result(self.context, {"api_key": self.key, "id": LONG}),
        }

    async def call(self, kind: str) -> Got:
        """Make one call, and note what its caller got."""
        began = self.world.clock.monotonic()
        work = self.kinds()[kind]
        try:
            got = await self.world.on(FRONT, work())
        except AnsweredError as error:
            found = error.status, error.code, str(error.retry_after_s or ""), ""
        else:
            found = _read(got)
        seconds = self.world.clock.monotonic() - began
        status, code, retry_after, text = found
        self.got.append(Got(kind, began, status, code, seconds, retry_after, text))
        return self.got[-1]

    async def arrivals(
        self, seconds: float, every_s: float = 0.2, kinds: Collection[str] = ()
    ) -> list[asyncio.Task[Got]]:
        """Start a call of each kind again and again, or of these kinds. Return their tasks."""
        tasks = []
        until = self.world.clock.monotonic() + seconds
        while self.world.clock.monotonic() < until:
            tasks += [asyncio.ensure_future(self.call(kind)) for kind in kinds or self.kinds()]
            await asyncio.sleep(every_s)
        return tasks

    def began(self, seconds: float, at: float) -> list[Got]:
        """Return the calls that began within `seconds` after the time `at`, by the monotonic clock."""
        return [each for each in self.got if at <= each.began < at + seconds]

    # What the log says

    def facts(self) -> list[Any]:
        entries = self.world.data.logs[SHARD].entries.values()
        return [fact for data in entries for fact in decode_entry(data).facts]

    def doubled(self) -> list[str]:
        """Return the calls that were accepted or ended more than once."""
        accepted = Counter(fact.id for fact in self.facts() if isinstance(fact, Accepted))
        ended = Counter(fact.id for fact in self.facts() if isinstance(fact, Ended))
        return [name for counts in (accepted, ended) for name, count in counts.items() if count > 1]

    def begun_since(self, place: int) -> list[Any]:
        """Return the orders that reached the workers after the first `place` of them."""
        return [order for _, order in self.workers.orders[place:]]


def _read(got: Any) -> tuple[int, str, str, str]:
    """Return status, code, Retry-After and text of an HTTP reply or of a payload."""
    if isinstance(got, dict):
        error = got.get("error", {})
        return int(got.get("status", 200)) if error else 200, str(error.get("code", "")), "", json.dumps(got)
    code = ""
    if got.status >= 400:
        code = str(json.loads(got.body)["error"]["code"])
    return got.status, code, got.headers.get("retry-after", ""), got.body.decode()
