"""Any sequence of calls gets the same answers from the memory store and from SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from dispatcher.model.errors import LogGap
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.ports import Store
from dispatcher.stores.sqlite.store import SqliteStore
from tests.conformance.store_world import START, FakeClock, answer, invocation, kept_response, tenant_row, usage_row
from tests.support.duration import at_depth
from tests.support.world.memory_store import MemoryStore

shards = st.sampled_from(["s", "t"])
positions = st.integers(0, 6)
texts = st.sampled_from(["", "x", "y"])
names = st.sampled_from(["a", "ab", "b"])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.puts = 0
        self.snapshots = 0
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / "store.db"
        self.stores: list[Store] = [MemoryStore(self.clock), SqliteStore(path, self.clock)]

    def teardown(self) -> None:
        for store in self.stores:
            self.loop.run_until_complete(store.close())
        self.loop.close()
        self.folder.cleanup()

    def same(self, call: Callable[[Store], Awaitable[Any]]) -> None:
        first, second = (self.loop.run_until_complete(_outcome(call(store))) for store in self.stores)
        assert first == second

    @rule(shard=shards, position=positions, text=texts)
    def append(self, shard: str, position: int, text: str) -> None:
        self.same(lambda store: store.log(shard).append(position, text.encode()))

    @rule(shard=shards, position=positions, limit=st.integers(1, 4))
    def read(self, shard: str, position: int, limit: int) -> None:
        self.same(lambda store: store.log(shard).read(position, limit))
        self.same(lambda store: store.log(shard).last())

    @rule(shard=shards, text=texts)
    def snapshot(self, shard: str, text: str) -> None:
        """At a higher position each time: `cut` may stop at the first snapshot that is too young to be deleted."""
        self.snapshots += 1
        self.same(lambda store: store.log(shard).save_snapshot(self.snapshots, f"n{text}", text.encode()))

    @rule(shard=shards, position=st.integers(0, 12))
    def cut(self, shard: str, position: int) -> None:
        self.same(lambda store: store.log(shard).cut(position))
        self.same(lambda store: store.log(shard).load_snapshot())

    @rule(number=st.integers(0, 3), tenant=names, key=texts)
    def create(self, number: int, tenant: str, key: str) -> None:
        now = self.clock.now()
        new = invocation(f"p-{number}", tenant, key, created_at=now, deadline_at=now + 10)
        self.same(lambda store: store.create(new))

    @rule(number=st.integers(0, 3), text=texts)
    def answer(self, number: int, text: str) -> None:
        self.same(lambda store: store.answer(f"p-{number}", answer(text)))
        self.same(lambda store: store.get(f"p-{number}"))

    @rule(number=st.integers(0, 3), text=texts)
    def share_or_refuse(self, number: int, text: str) -> None:
        if text:
            self.same(lambda store: store.share(f"p-{number}"))
        self.same(lambda store: store.refuse(f"p-{number}", answer(text)))

    @rule(tenant=names, key=texts)
    def find(self, tenant: str, key: str) -> None:
        self.same(lambda store: store.find(tenant, key))

    @rule(number=st.integers(0, 3), tenant=names, size=st.integers(0, 40))
    def keep_response(self, number: int, tenant: str, size: int) -> None:
        new = kept_response(f"resp_{number}", tenant, content=b"x" * size, expires_at=self.clock.now() + 10)
        self.same(lambda store: store.keep_response(new, 60))

    @rule(number=st.integers(0, 3), tenant=names, delete=st.booleans())
    def response(self, number: int, tenant: str, delete: bool) -> None:
        if delete:
            self.same(lambda store: store.delete_response(tenant, f"resp_{number}"))
        self.same(lambda store: store.response(tenant, f"resp_{number}"))

    @rule(process=names, position=positions, text=texts)
    def put_news(self, process: str, position: int, text: str) -> None:
        self.same(lambda store: store.mailboxes.put(process, position, [text.encode()]))

    @rule(process=names, after=positions)
    def read_news(self, process: str, after: int) -> None:
        async def unordered(store: Store) -> list[tuple[int, bytes]]:
            news = await store.mailboxes.read(process, after - 1)
            assert [position for position, _ in news] == sorted(position for position, _ in news)
            return sorted(news)

        self.same(unordered)

    @rule(
        shard=st.sampled_from(("s", "t")), tenant=names, app=texts, hour=st.integers(0, 2), position=st.integers(0, 2)
    )
    def put_usage(self, shard: str, tenant: str, app: str, hour: int, position: int) -> None:
        self.puts += 1
        row = usage_row(tenant, app, hour, position, requests=self.puts)
        self.same(lambda store: store.put_usage(shard, [row]))
        self.same(lambda store: store.put_tenant_rows("s", [tenant_row(tenant, position, waiting=self.puts)]))
        self.same(lambda store: store.usage(None, 0, 2))
        self.same(lambda store: store.tenant_rows("s"))

    @rule(tenant=st.none() | names, first=st.integers(0, 2), last=st.integers(0, 2))
    def usage(self, tenant: str | None, first: int, last: int) -> None:
        self.same(lambda store: store.usage(tenant, first, last))

    @rule(name=names, version=st.integers(1, 3), expected=st.none() | st.integers(1, 3))
    def put_tenant(self, name: str, version: int, expected: int | None) -> None:
        tenant = Tenant(name, version=version)
        self.same(lambda store: store.put_tenant(tenant, expected_version=expected))
        self.same(lambda store: store.list_tenants())

    @rule(prefix=names, tenant=names, lifetime_s=st.none() | st.integers(1, 10_000))
    def put_key(self, prefix: str, tenant: str, lifetime_s: int | None) -> None:
        expires_at = None if lifetime_s is None else self.clock.now() + lifetime_s
        self.same(lambda store: store.put_key(KeyRecord(prefix, "d", tenant, expires_at, START)))

    @rule(name=names)
    def keys(self, name: str) -> None:
        self.same(lambda store: store.find_key(name))
        self.same(lambda store: store.keys_of(name))

    @rule(name=names, of_tenant=st.booleans())
    def delete(self, name: str, of_tenant: bool) -> None:
        self.same(lambda store: store.delete_tenant(name) if of_tenant else store.delete_key(name))

    @rule(seconds=st.sampled_from([1.0, 3600.0, 24 * 3600.0, 8 * 24 * 3600.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.time += seconds


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        outcome = await call
    except LogGap as gap:
        return str(gap)
    return list(outcome) if isinstance(outcome, list | tuple) else outcome


TestStores = StoreMachine.TestCase
TestStores.settings = settings(max_examples=at_depth(40, 100), stateful_step_count=50, deadline=None)
