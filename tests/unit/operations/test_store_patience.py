"""How long a caller waits for the store: longer in a process that the store has not answered yet."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.operations.store_patience import COLD_PATIENCE_S, STORE_PATIENCE_S, StorePatience
from headgate.simulator.virtual_time import run


async def answer_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "answered"


async def refuse() -> str:
    raise ValueError("refused")


async def _times_out(patience: StorePatience, seconds: float) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await patience.in_time(answer_after(60.0))
    assert clock() - began == pytest.approx(seconds)


def test_a_process_waits_longer_until_the_store_has_answered_it_once() -> None:
    async def story() -> None:
        patience = StorePatience()
        await _times_out(patience, COLD_PATIENCE_S)
        with pytest.raises(ValueError, match="refused"):
            await patience.in_time(refuse())
        await _times_out(patience, COLD_PATIENCE_S)
        assert await patience.in_time(answer_after(COLD_PATIENCE_S - 0.1)) == "answered"
        await _times_out(patience, STORE_PATIENCE_S)

    run(story())
