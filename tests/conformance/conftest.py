from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.store_backends import BACKENDS, TABLES, Place, PlaceMaker
from tests.conformance.store_world import FakeClock, World


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, PlaceMaker]]:
    """Each backend's server is started once, by the first test that wants it."""
    running = _Servers()
    yield running
    running.stop()


class _Servers(dict[str, PlaceMaker]):
    def __init__(self) -> None:
        super().__init__()
        self._contexts: list[object] = []

    def __missing__(self, name: str) -> PlaceMaker:
        context = BACKENDS[name]()
        self[name] = context.__enter__()
        self._contexts.append(context)
        return self[name]

    def stop(self) -> None:
        for context in self._contexts:
            context.__exit__(None, None, None)


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, servers: dict[str, PlaceMaker]) -> Place:
    return servers[request.param]()


@pytest.fixture(params=TABLES)
def table_place(request: pytest.FixtureRequest, servers: dict[str, PlaceMaker]) -> Place:
    return servers[request.param]()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def world(place: Place, clock: FakeClock) -> World:
    return World(place.open(clock), clock)
