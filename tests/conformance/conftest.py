from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from dispatcher.ports import Log, Store
from tests.conformance.store_backends import BACKENDS, SHARED, TABLES, Place, PlaceMaker
from tests.conformance.store_world import SHARD, FakeClock


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, PlaceMaker]]:
    """Each backend's server is started once, by the first test that wants it."""
    running = _Servers()
    yield running
    running.stop()


class _Servers(dict[str, PlaceMaker]):
    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()

    def __missing__(self, name: str) -> PlaceMaker:
        self[name] = self._open.enter_context(BACKENDS[name].start())
        return self[name]

    def stop(self) -> None:
        self._open.close()


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, servers: dict[str, PlaceMaker]) -> Place:
    return servers[request.param]()


@pytest.fixture(params=SHARED)
def shared_place(request: pytest.FixtureRequest, servers: dict[str, PlaceMaker]) -> Place:
    return servers[request.param]()


@pytest.fixture(params=TABLES)
def table_place(request: pytest.FixtureRequest, servers: dict[str, PlaceMaker]) -> Place:
    return servers[request.param]()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(place: Place, clock: FakeClock) -> AsyncIterator[Store]:
    opened = place.open(clock)
    yield opened
    await opened.close()


@pytest.fixture
def log(store: Store) -> Log:
    return store.log(SHARD)


@pytest.fixture
async def stores(place: Place, clock: FakeClock) -> AsyncIterator[list[Store]]:
    """The same data, opened three times."""
    opened = [place.open(clock) for _ in range(3)]
    yield opened
    for each in opened:
        await each.close()
