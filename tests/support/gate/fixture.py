"""The fixture `gate` in virtual time, for the conftest.py of folders that test the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.gate.memory_gate import Gate, make_gate
from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, type[VirtualTimeLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """Two tenants and one worker of two slots. After the test no slot, reservation or waiting request may be left."""
    made = await make_gate()
    yield made
    await made.at_rest()
