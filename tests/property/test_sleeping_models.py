"""Swaps in any order with any faults: one engine serves, the budget holds, no engine and no count is lost."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.interface import own_order
from gpu_worker.engines.model_swaps import ModelSwaps, SwapFailed
from gpu_worker.engines.supervised import SupervisedEngine
from tests.support.worker.swapped_models import SLEEP_BYTES, Models, prepared
from tests.support.world.virtual_time import run

NAMES = ("a", "b", "c", "d")
SLEEPS = ("", "", "", "sleep fails", "sleep hangs", "sleep frees nothing")
WAKES = ("", "", "", "wake fails", "wake hangs", "wake lies", "wrong after wake")
STARTS = ("", "", "", "fails", "wrong")


class Swap(NamedTuple):
    name: str
    sleep: str
    """The fault of the sleep of the engine that serves."""
    wake: str
    """The fault of the wake-up of the model's engine, if it sleeps."""
    starts: list[str]
    """The faults of the next starts of the model."""


SWAPS = st.builds(
    Swap,
    st.sampled_from(NAMES),
    st.sampled_from(SLEEPS),
    st.sampled_from(WAKES),
    st.lists(st.sampled_from(STARTS), max_size=2),
)


@given(room=st.integers(0, len(NAMES)), swaps=st.lists(SWAPS, max_size=12))
def test_any_swaps_with_any_faults(room: int, swaps: list[Swap]) -> None:
    async def story() -> None:
        models = Models(SLEEP_BYTES)
        engine, loaded = await prepared(models, *NAMES[1:], sleep_memory_bytes=room * SLEEP_BYTES)
        served = 0.0
        for number, swap in enumerate(swaps):
            await one(models, engine, loaded, swap)
            assert sorted(models.alive()) == sorted([engine.facts.model, *engine.asleep])
            assert sorted(models.asleep()) == sorted(engine.asleep)
            assert models.most_asleep_bytes <= room * SLEEP_BYTES
            events = [event async for event in engine.generate(own_order(str(number), "t", {"prompt": "p"}, 2))]
            assert events
            before, served = served, engine.stats().tenants["a"].service
            assert served >= before + 4, "two tokens, and the canary of a swap"
        await engine.stop()
        assert models.alive() == []

    run(story())


async def one(models: Models, engine: SupervisedEngine, swaps: ModelSwaps, swap: Swap) -> None:
    """Swap with these faults. The former model can be started."""
    former = engine.facts.model
    if swap.name == former or not swaps.can_load(swap.name):
        return
    for made in models.made:
        if not made.is_stopped and made.facts.model in (former, swap.name):
            made.fault = swap.sleep if made.facts.model == former else swap.wake
    models.faults = {swap.name: list(swap.starts) or [""]}
    failed = False
    try:
        await swaps.load(swap.name)
    except SwapFailed:
        failed = True
    models.faults = {}
    assert engine.serves()
    assert not engine.hopeless.is_set()
    assert engine.facts.model == (former if failed else swap.name)
