"""Virtual time for all tests but those of real processes and sockets. Sockets are tested on both event loops."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.support.world.processes import World
from tests.support.world.virtual_time import VirtualTimeLoop

REAL = {"test_gate_process", "test_planner_process"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, type[asyncio.AbstractEventLoop]]:
    if item.path.stem == "test_connections":
        return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.Loop}
    return {"real": asyncio.SelectorEventLoop} if item.path.stem in REAL else {"virtual": VirtualTimeLoop}


@pytest.fixture
def world() -> World:
    return World()
