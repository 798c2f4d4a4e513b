"""How long a caller waits for the store: longer in a process that the store has not answered yet."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.operations.store_patience import COLD_PATIENCE_S, STORE_PATIENCE_S, StorePatience


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


async def test_a_process_waits_longer_until_the_store_has_answered_it_once() -> None:
    patience = StorePatience()
    await _times_out(patience, COLD_PATIENCE_S)
    with pytest.raises(ValueError, match="refused"):
        await patience.in_time(refuse())
    await _times_out(patience, COLD_PATIENCE_S)
    assert await patience.in_time(answer_after(COLD_PATIENCE_S - 0.1)) == "answered"
    await _times_out(patience, STORE_PATIENCE_S)


async def test_a_request_goes_on_while_the_store_answers_others() -> None:
    patience, clock = StorePatience(), asyncio.get_running_loop().time
    assert await patience.in_time(answer_after(0.1)) == "answered"
    slow = [asyncio.create_task(patience.in_time(answer_after(0.5 * number))) for number in range(1, 11)]
    assert await asyncio.gather(*slow) == ["answered"] * 10
    began = clock()
    never = asyncio.create_task(patience.in_time(answer_after(60.0)))
    for _ in range(3):
        assert await patience.in_time(answer_after(1.0)) == "answered"
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await never
    assert clock() - began == pytest.approx(3.0 + STORE_PATIENCE_S)


async def test_no_request_waits_for_ever_beside_others() -> None:
    patience, clock = StorePatience(), asyncio.get_running_loop().time
    began = clock()
    never = asyncio.create_task(patience.in_time(answer_after(60.0)))
    while not never.done():
        await patience.in_time(answer_after(0.2))
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await never
    assert clock() - began == pytest.approx(COLD_PATIENCE_S, abs=0.3)
