from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.worker.harness import WorkerHarness, serving


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    """A worker that has joined its pool and serves."""
    async with serving(WorkerHarness()) as served:
        yield served
