"""The HTTP face of a worker that can load several models."""

from __future__ import annotations

from dispatcher.model.fleet import LoadableModel
from tests.support.world.memory_gate import Gate

MODELS = (
    LoadableModel("big", 30.0, 8000, 3.5, 50.0, ("chat",)),
    LoadableModel("small", 0.0, 1000, 4.0, 100.0, ("chat", "completion")),
)


async def test_models_that_are_not_loaded_are_listed(gate: Gate) -> None:
    gate.shard.report("s", model="small", models=MODELS)
    listed = (await gate.caller().get("/v1/models")).json()["data"]
    found = {model["id"]: model for model in listed}
    assert {"big", "small"} <= found.keys()
    assert (found["big"]["context_length"], found["big"]["capabilities"]) == (8000, ["chat"])
    assert (await gate.caller().get("/v1/models/big")).json() == found["big"]


async def test_a_fleet_that_swaps_is_ready(gate: Gate) -> None:
    for worker in await gate.link().fleet():
        gate.shard.report(worker.worker, draining=True)
    assert (await gate.caller(None).get("/ready")).status == 503
    gate.shard.report("s", model="small", models=MODELS, draining=True)
    await gate.clock.sleep(1.0)
    assert (await gate.caller(None).get("/ready")).status == 200
