"""vLLM with an embedding model, started by arguments after `--`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineEvent, Finished, PromptTooLong, Token, own_order
from gpu_worker.engines.vllm.engine import VllmEngine, VllmShape

POOLING = ("--runner", "pooling", "--convert", "embed", "--max-model-len", "512")
TENANTS = ("--middleware", "headgate_vllm.Tenants")
WIDTH = 128


@asynccontextmanager
async def vllm_with(arguments: tuple[str, ...], home: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(model="random:2x128", home=home, shape=VllmShape(batch=4, arguments=arguments))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def embedded(engine: VllmEngine, name: str, **body: Any) -> list[EngineEvent]:
    request = own_order(name, "a", body, 0, Endpoint.EMBEDDINGS)
    return [event async for event in engine.generate(request)]


def vectors(events: list[EngineEvent]) -> list[Any]:
    return [event.delta["embedding"] for event in events if isinstance(event, Token) and event.delta]


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


async def test_an_embedding_model_serves_embeddings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an embedding is its tenant's in the scheduler, by the middleware for a bare server."""
    (tmp_path / "tenants.toml").write_text('header = "x-tenant"\nunknown = "share"\n')
    monkeypatch.setenv("HEADGATE_TENANTS", str(tmp_path / "tenants.toml"))
    async with vllm_with((*POOLING, *TENANTS), tmp_path) as engine:
        assert engine.facts.capabilities == {"embeddings", "vllm"}
        one = await embedded(engine, "one", input="hello")
        assert isinstance(one[-1], Finished)
        assert (one[-1].reason, one[-1].output_tokens) == ("stop", 0)
        assert [len(vector) for vector in vectors(one)] == [WIDTH]

        several = await embedded(engine, "several", input=["hello", "goodbye"])
        assert vectors(several)[0] == pytest.approx(vectors(one)[0], abs=1e-4)
        assert vectors(several)[1] != pytest.approx(vectors(one)[0], abs=1e-2)
        assert isinstance(vectors(await embedded(engine, "text", input="hello", encoding_format="base64"))[0], str)

        with pytest.raises(PromptTooLong):
            await embedded(engine, "long", input="word " * 600)
        together = await asyncio.gather(*(embedded(engine, f"r{number}", input="hello") for number in range(10)))
        assert all(len(vectors(events)) == 1 for events in together)

        assert engine._http is not None
        body = {"model": engine.facts.model, "input": ["hello", "goodbye"]}
        await engine._http.post("http://vllm/v1/embeddings", json=body, headers={"x-tenant": "acme"})
        while (acme := engine.stats().tenants.get("acme")) is None:
            await asyncio.sleep(0.05)
        assert acme.input_tokens > 0
