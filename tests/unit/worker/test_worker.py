"""The worker's door, its executions and its agent; the gate's client against the real app, over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace
from random import Random

import httpx
import pytest

from dispatcher.errors import StoreUnavailable, WorkerFailed
from dispatcher.fleet import Lease, Worker
from dispatcher.grants import Grant, GrantRefused, digest, sign, verify
from dispatcher.invocation import Invocation, Slot, dispatched
from dispatcher.outcomes import Written
from dispatcher.policies.clocks import Clocks, Terms, debit
from dispatcher.policies.tiers import Tier
from dispatcher.stores.memory import MemoryStore
from dispatcher.work import WorkEvent, WorkFinished, WorkOrder, WorkRefused
from dispatcher.worker_client import HttpWorkerClient
from gpu_worker.agent import Agent, AgentSettings
from gpu_worker.executions import Executions
from gpu_worker.server import make_app, stats_token
from gpu_worker.wire import OrderBody, parse_order
from tests.support.engines import MODEL, ScriptedEngine
from tests.support.virtual_time import START, LoopClock, run

SECRET = b"sixteen characters and more"
WORKER = Worker("w", "default", "http://w", MODEL, slots=2)


def order(invocation: str = "i", **fields: object) -> WorkOrder:
    known: dict[str, object] = {
        "tenant": "a",
        "invocation": invocation,
        "attempt": 1,
        "slot": 0,
        "model": MODEL,
        "weight": 1.0,
        "tier": Tier.STANDARD,
        "deadline_at": START + 100,
        "prompt": "hello",
        "messages": None,
        "max_tokens": 3,
        "temperature": 1.0,
        "seed": None,
        "stop": (),
    }
    return WorkOrder(**{**known, **fields})  # type: ignore[arg-type]


@dataclass
class Settlements:
    done: list[tuple[str, int, int]] = field(default_factory=list)

    async def __call__(
        self, tenant: str, invocation_id: str, attempt: int, *, input_tokens: int, output_tokens: int
    ) -> None:
        self.done.append((f"{tenant}/{invocation_id}#{attempt}", input_tokens, output_tokens))


class House:
    """A worker without its process."""

    def __init__(self, **engine: float) -> None:
        self.clock = LoopClock()
        self.engine = ScriptedEngine(**engine)  # type: ignore[arg-type]
        self.settlements = Settlements()
        self.executions = Executions(self.engine, WORKER.slots, self.clock, self.settlements)
        self.app = make_app(self.executions, worker_id="w", secret=SECRET, clock=self.clock)
        self.transport = httpx.ASGITransport(self.app)
        self.client = HttpWorkerClient(secret=SECRET, clock=self.clock, transport=self.transport)

    async def execute(self, work: WorkOrder, worker: Worker = WORKER) -> list[WorkEvent]:
        return [event async for event in self.client.execute(worker, work)]


class TestDoor:
    def test_an_order_is_executed_and_streamed(self) -> None:
        house = House()
        events = run(house.execute(order()))
        assert events[-1] == WorkFinished("length", 5, 3)
        assert house.engine.requests[0].tenant == "a"
        assert house.settlements.done == []  # the gate had it all, and settles

    def test_chat_is_rendered_by_the_engine(self) -> None:
        house = House()
        run(house.execute(order(prompt=None, messages=({"role": "user", "content": "hi"},))))
        assert house.engine.requests[0].prompt == "hi"

    @pytest.mark.parametrize(
        ("work", "worker", "status"),
        [
            (order(), replace(WORKER, id="another"), 401),
            (order(model="other"), WORKER, 404),
            (order(max_tokens=0), WORKER, 422),
            (order(prompt=None), WORKER, 422),
            (order(prompt="x" * 3_000_000), WORKER, 413),
            (order(prompt="x" * 2000), WORKER, 400),
        ],
    )
    def test_what_is_refused_and_how(self, work: WorkOrder, worker: Worker, status: int) -> None:
        refused = run(House().execute(work, worker))[-1]
        assert isinstance(refused, WorkRefused)
        assert refused.status == status

    def test_no_more_than_its_slots_and_none_twice(self) -> None:
        async def story() -> list[int]:
            house = House()
            running = [asyncio.ensure_future(house.execute(order(f"i{n}"))) for n in range(2)]
            await asyncio.sleep(0.05)
            refused = [(await house.execute(order("i2")))[0], (await house.execute(order("i0")))[0]]
            await asyncio.gather(*running)
            assert isinstance((await house.execute(order("i3")))[-1], WorkFinished)
            return [event.status for event in refused if isinstance(event, WorkRefused)]

        assert run(story()) == [503, 409]

    def test_a_draining_worker_takes_nothing(self) -> None:
        house = House()
        house.executions.accepting = False
        refused = run(house.execute(order()))[0]
        assert isinstance(refused, WorkRefused)
        assert (refused.status, refused.code) == (503, "draining")

    def test_past_its_deadline_it_is_aborted(self) -> None:
        events = run(House().execute(order(max_tokens=500, deadline_at=START + 2)))
        last = events[-1]
        assert isinstance(last, WorkFinished)
        assert last.reason == "aborted"
        assert 15 <= last.output_tokens <= 25

    def test_stats_need_the_fleets_signature(self) -> None:
        async def story() -> tuple[int, int]:
            house = House()
            async with httpx.AsyncClient(transport=house.transport, base_url="http://w") as http:
                headers = {"authorization": f"Bearer {stats_token(SECRET)}"}
                return (await http.get("/stats")).status_code, (await http.get("/stats", headers=headers)).status_code

        assert run(story()) == (401, 200)


class TestGrants:
    GRANT = Grant("w", "a", "i", 1, 0, 100.0, digest(b"body"))

    def test_opens_for_what_it_was_signed_for(self) -> None:
        token = sign(self.GRANT, SECRET)
        assert verify(token, SECRET, worker="w", body=b"body", now=99.0) == self.GRANT

    @pytest.mark.parametrize(
        ("secret", "worker", "body", "now"),
        [
            (b"other", "w", b"body", 0.0),
            (SECRET, "v", b"body", 0.0),
            (SECRET, "w", b"else", 0.0),
            (SECRET, "w", b"body", 100.0),
        ],
    )
    def test_and_for_nothing_else(self, secret: bytes, worker: str, body: bytes, now: float) -> None:
        with pytest.raises(GrantRefused):
            verify(sign(self.GRANT, SECRET), secret, worker=worker, body=body, now=now)

    @pytest.mark.parametrize("token", ["", ".", "a.b", "§.§", "e30.e30", "a" * 10_000])
    def test_what_is_no_grant(self, token: str) -> None:
        with pytest.raises(GrantRefused):
            verify(token, SECRET, worker="w", body=b"", now=0.0)


class TestDisconnect:
    def test_the_work_is_aborted_and_the_exact_count_settled(self) -> None:
        async def story() -> House:
            house = House()
            execution = house.executions.claim(_body(order(max_tokens=500)))
            lines = house.executions.run(execution)
            for _ in range(5):  # started, and four tokens
                await anext(lines)
            await lines.aclose()
            await house.executions.idle()
            return house

        house = run(story())
        name, input_tokens, output_tokens = house.settlements.done[0]
        assert (name, input_tokens) == ("a/i#1", 5)
        assert 4 <= output_tokens <= 6
        assert output_tokens * 2 == house.engine.served  # all that was generated, no more, no less
        assert house.executions.live() == frozenset()

    def test_where_the_lease_is_lost_nothing_is_settled(self) -> None:
        async def story() -> House:
            house = House()
            lines = house.executions.run(house.executions.claim(_body(order(max_tokens=500))))
            await anext(lines)
            await house.executions.abort("a/i#1", lease_lost=True)
            await lines.aclose()
            await house.executions.idle()
            return house

        assert run(story()).settlements.done == []


def _body(work: WorkOrder) -> OrderBody:
    return parse_order(json.dumps(asdict(work)).encode())


class TestClient:
    @pytest.mark.parametrize(
        "answer",
        [
            httpx.Response(200, content=b'{"event":"started","input_tokens":1}\n'),
            httpx.Response(200, content=b"no json\n"),
            httpx.Response(200, content=b'{"event":"song"}\n'),
        ],
    )
    def test_a_stream_that_breaks_off_or_makes_no_sense_is_a_failure(self, answer: httpx.Response) -> None:
        client = HttpWorkerClient(secret=SECRET, clock=LoopClock(), transport=httpx.MockTransport(lambda _: answer))

        async def story() -> None:
            async for _ in client.execute(WORKER, order()):
                pass

        with pytest.raises(WorkerFailed):
            run(story())

    def test_nobody_there_is_a_failure(self) -> None:
        def refuse(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused")

        client = HttpWorkerClient(secret=SECRET, clock=LoopClock(), transport=httpx.MockTransport(refuse))

        async def story() -> None:
            async for _ in client.execute(WORKER, order()):
                pass

        with pytest.raises(WorkerFailed):
            run(story())


class Away:
    """A table that cannot be reached."""

    async def before(self, operation: str) -> None:
        raise StoreUnavailable()

    async def after(self, operation: str) -> None:
        return None


class TestAgent:
    def agent(self, house: House, store: MemoryStore) -> Agent:
        return Agent(WORKER, store, house.executions, house.clock, Random(1), AgentSettings())

    def test_registers_beats_and_leaves(self) -> None:
        async def story() -> None:
            house = House()
            store = MemoryStore(house.clock)
            agent = self.agent(house, store)
            await agent.register()
            beating = asyncio.ensure_future(agent.run())
            await asyncio.sleep(60)
            (seen,) = await store.workers("default")
            assert seen.takes_work(house.clock.now())
            assert seen.kv_use == 0.5
            beating.cancel()
            await agent.drain()
            assert not [w for w in await store.workers("default") if w.takes_work(house.clock.now())]

        run(story())

    def test_a_lost_lease_aborts_the_work_unsettled(self) -> None:
        async def story() -> None:
            house = House()
            store = MemoryStore(house.clock)
            agent = self.agent(house, store)
            await agent.register()
            execution = house.executions.claim(_body(order(max_tokens=5000)))
            reading = asyncio.ensure_future(_read(house.executions.run(execution)))
            lease = await lease_first_slot(store, house.clock.now())
            await agent.beat()
            (seat,) = await store.workers("default")
            await store.free_slot(seat, Slot("w", 0), lease)
            await agent.beat()
            lines = await reading
            assert b'"aborted"' in lines[-1]
            assert house.settlements.done == []

        run(story())

    def test_cut_off_from_the_table_it_aborts_before_its_lease_ends(self) -> None:
        async def story() -> float:
            house = House()
            store = MemoryStore(house.clock)
            agent = self.agent(house, store)
            await agent.register()
            beating = asyncio.ensure_future(agent.run())
            reading = asyncio.ensure_future(
                _read(house.executions.run(house.executions.claim(_body(order(max_tokens=5000)))))
            )
            await asyncio.sleep(5)
            since = house.clock.now()
            store.faults = Away()
            await reading
            assert not house.executions.accepting
            store.faults = None
            await asyncio.sleep(5)
            assert house.executions.accepting
            beating.cancel()
            return house.clock.now() - 5 - since

        assert run(story()) < AgentSettings().lease_s

    def test_draining_lets_work_finish(self) -> None:
        async def story() -> None:
            house = House()
            agent = self.agent(house, MemoryStore(house.clock))
            await agent.register()
            execution = house.executions.claim(_body(order(max_tokens=50)))
            reading = asyncio.ensure_future(_read(house.executions.run(execution)))
            await asyncio.sleep(1)
            await agent.drain()
            assert b'"length"' in (await reading)[-1]

        run(story())


async def _read(lines: AsyncIterator[bytes]) -> list[bytes]:
    return [line async for line in lines]


async def lease_first_slot(store: MemoryStore, now: float) -> Lease:
    """A lease as a dispatch leaves it."""
    charged = debit(Clocks(), Terms(), 1.0, now, 0.0)
    queued = Invocation("a", "i", "a", "default", MODEL, "f", now, now + 100, 1.0, 1)
    assert await store.admit(dispatched(queued, Slot("w", 0), charged.charge, now), charged, now) is Written.DONE
    return (await store.workers("default"))[0].leases[0]
