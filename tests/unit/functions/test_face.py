"""The HTTP face beside completions: models, readiness, CORS, embeddings, and URLs that do not exist."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.model.commands import Silent
from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.model.fleet import LoadableModel
from dispatcher.settings.config import load_config
from functions.http_api.routes.fleet import PATIENCE_S
from functions.invoke.handler import invoke
from tests.support.asgi import Call, Caller, Reply
from tests.support.world.memory_gate import CHAT, Gate

PAGE = "https://chat.example.com"
MESSAGES = [{"role": "user", "content": "hello"}]


async def test_a_model_has_what_all_its_workers_offer_and_their_shortest_context(gate: Gate) -> None:
    gate.add_worker("one", model="n", context_tokens=4096, capabilities=("chat", "completion", "n", "tools"))
    gate.add_worker("two", model="n", context_tokens=2048, capabilities=("chat", "completion", "tools"))
    model = (await gate.caller().get("/v1/models/n")).json()
    assert model["capabilities"] == ["chat", "completion", "tools"]
    assert (model["max_model_len"], model["context_length"]) == (2048, 2048)


async def test_a_gate_with_a_serving_worker_is_ready_without_a_key(gate: Gate) -> None:
    reply = await gate.caller(None).get("/ready")
    assert (reply.status, reply.json()["status"]) == (200, "ready")
    assert reply.json()["pools"] == {"default": {"workers": {"serving": 1}}}


async def test_a_pool_without_a_serving_worker_is_not_ready(gate: Gate) -> None:
    gate.shard.decide(Silent("w", is_worker=True))
    reply = await gate.caller(None).get("/ready")
    assert (reply.status, reply.json()["status"], reply.headers["retry-after"]) == (503, "not ready", "1")
    assert "no serving worker" in reply.json()["reason"]


async def test_a_gate_that_cannot_read_its_table_is_not_ready(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> None:
        raise StoreUnavailable()

    assert (await gate.caller(None).get("/ready")).status == 200
    monkeypatch.setattr(gate.pool.link, "fleet", away)
    monkeypatch.setattr(gate.pool.fleet, "_read_at", -100.0)
    reply = await gate.caller(None).get("/ready")
    assert (reply.status, reply.json()["table"]) == (503, "unavailable")
    assert (await gate.caller(None).get("/health")).status == 200


@pytest.mark.parametrize("hangs", [True, False])
async def test_probes_during_an_outage_are_one_read_and_end(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    reads = []

    async def away() -> None:
        reads.append(1)
        if hangs:
            await asyncio.sleep(60)
        raise StoreUnavailable()

    monkeypatch.setattr(gate.pool.link, "fleet", away)
    began = gate.clock.now()
    replies = [await gate.caller(None).get("/ready") for _ in range(10)]
    assert {reply.status for reply in replies} == {503}
    assert len(reads) == 1
    assert gate.clock.now() - began <= PATIENCE_S
    await asyncio.sleep(60)


async def test_many_probes_are_one_read(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], gate.pool.link.fleet

    async def counted() -> object:
        reads.append(1)
        return await read()

    monkeypatch.setattr(gate.pool.link, "fleet", counted)
    for _ in range(20):
        await gate.caller(None).get("/ready")
    assert len(reads) == 1


def allowed(gate: Gate, *origins: str) -> Caller:
    gate.context.cors_origins = origins
    return gate.caller()


async def preflight(caller: Caller, origin: str) -> Reply:
    headers = {"origin": origin, "access-control-request-method": "POST"}
    asked = {**headers, "access-control-request-headers": "authorization,content-type,x-stainless-lang"}
    return await Call(caller.app, "OPTIONS", CHAT, headers=asked).finished()


async def test_a_page_of_an_allowed_origin_may_call(gate: Gate) -> None:
    caller = allowed(gate, PAGE)
    asked = await preflight(caller, PAGE)
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-stainless-lang" in asked.headers["access-control-allow-headers"]
    reply = await caller.post(CHAT, {"model": "m", "messages": MESSAGES, "max_tokens": 3}, origin=PAGE)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-headgate-queue-position" in reply.headers["access-control-expose-headers"]


async def test_an_error_can_be_read_by_the_page_too(gate: Gate) -> None:
    reply = await allowed(gate, "*").post(CHAT, {"model": "m"}, origin=PAGE)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (400, "*")


@pytest.mark.parametrize("origins", [(), ("https://other.example.com",)])
async def test_a_page_of_another_origin_may_not(gate: Gate, origins: tuple[str, ...]) -> None:
    asked = await preflight(allowed(gate, *origins), PAGE)
    assert asked.status in (400, 405)
    assert "access-control-allow-origin" not in asked.headers


def test_origins_are_checked_when_the_gate_starts() -> None:
    assert load_config({"HEADGATE_CORS_ORIGINS": f'["{PAGE}"]'}).cors_origins == (PAGE,)
    for wrong in ("[]x", '["chat.example.com"]', '["https://chat.example.com/"]', '["https://*.example.com"]'):
        with pytest.raises(ConfigurationError, match="HEADGATE_CORS_ORIGINS"):
            load_config({"HEADGATE_CORS_ORIGINS": wrong})


@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/models/m", "/responses", "/embeddings"])
async def test_a_base_url_without_v1_is_named(gate: Gate, path: str) -> None:
    error = (await gate.caller().get(path)).error
    assert error["message"] == f"Not Found. The path is /v1{path}: end the base URL with /v1."


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/v1/v1/models", "The path has /v1 twice: end the base URL with /v1 once."),
        ("/v1/chat/completions/chat/completions", "End the base URL with /v1, directly after the host."),
        ("/api/v1/responses", "End the base URL with /v1, directly after the host."),
        ("/v1/audio/speech", "GET /docs lists the routes."),
        ("/", "GET /docs lists the routes."),
    ],
)
async def test_a_path_without_a_route_gets_advice(gate: Gate, path: str, advice: str) -> None:
    reply = await gate.caller().get(path)
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")
    assert reply.error["message"] == f"Not Found. {advice}"


async def test_a_route_with_another_method_gets_no_advice_about_its_path(gate: Gate) -> None:
    reply = await gate.caller().get("/v1/chat/completions")
    assert (reply.status, reply.error["code"], reply.error["message"]) == (
        405, "method_not_allowed", "Method Not Allowed.",
    )  # fmt: skip


EMBED = {"model": "e", "input": ["one", "two"]}


@pytest.mark.parametrize("key", [{}, {"idempotency_key": "k"}])
async def test_each_input_has_its_embedding_and_only_input_is_charged(gate: Gate, key: dict[str, Any]) -> None:
    gate.add_worker("embedder", model="e", capabilities=("embeddings",))
    types: Any = pytest.importorskip("openai.types")
    replies = [await gate.caller().post("/v1/embeddings", EMBED, **key) for _ in range(2)]
    for reply in replies:
        assert reply.status == 200
        body = types.CreateEmbeddingResponse.model_validate(reply.json())
        assert [each.embedding for each in body.data] == [[0.0, 1.0], [1.0, 1.0]]
        assert body.usage.prompt_tokens == body.usage.total_tokens > 0
    assert len(gate.workers.orders) == (1 if key else 2)
    assert gate.workers.orders[-1][1].max_tokens == 0
    rows = await gate.pool.link.usage("a", 0, 2**40)
    assert sum(row.output_tokens for _, row in rows) == 0
    assert sum(row.input_tokens for _, row in rows) > 0


async def test_a_model_that_generates_embeds_nothing(gate: Gate) -> None:
    error = (await gate.caller().post("/v1/embeddings", {**EMBED, "model": "m"})).error
    assert "does not serve /v1/embeddings" in error["message"]


async def test_embeddings_over_lambda(gate: Gate) -> None:
    gate.add_worker("embedder", model="e", capabilities=("embeddings",))
    answer = await invoke(gate.context, {**EMBED, "api_key": gate.keys["a"]}, "r-1", 60.0)
    assert [each["embedding"] for each in answer["data"]] == [[0.0, 1.0], [1.0, 1.0]]


LOADABLE = (
    LoadableModel("big", 30.0, 8000, 3.5, 50.0, ("chat",)),
    LoadableModel("small", 0.0, 1000, 4.0, 100.0, ("chat", "completion")),
)


async def test_models_that_are_not_loaded_are_listed(gate: Gate) -> None:
    gate.shard.report("s", model="small", models=LOADABLE)
    listed = (await gate.caller().get("/v1/models")).json()["data"]
    found = {model["id"]: model for model in listed}
    assert {"big", "small"} <= found.keys()
    assert (found["big"]["context_length"], found["big"]["capabilities"]) == (8000, ["chat"])
    assert (await gate.caller().get("/v1/models/big")).json() == found["big"]


async def test_a_tenants_adapters_are_listed_after_the_models(gate: Gate) -> None:
    gate.add_worker("w", capabilities=("adapter:law", "adapter:sql", "chat"))
    await gate.add_tenant("may", adapters=("sql", "gone"))
    listed = (await gate.caller("may").get("/v1/models")).json()["data"]
    assert [(model["id"], model.get("parent"), model["capabilities"]) for model in listed] == [
        ("m", None, ["chat"]),
        ("sql", "m", ["chat"]),
    ]
    assert (await gate.caller("may").get("/v1/models/sql")).json() == listed[1]
    assert [model["id"] for model in (await gate.caller().get("/v1/models")).json()["data"]] == ["m"]
    assert (await gate.caller().get("/v1/models/sql")).status == 404


async def test_a_fleet_that_swaps_is_ready(gate: Gate) -> None:
    for worker in await gate.link().fleet():
        gate.shard.report(worker.worker, draining=True)
    assert (await gate.caller(None).get("/ready")).status == 503
    gate.shard.report("s", model="small", models=LOADABLE, draining=True)
    await gate.clock.sleep(1.0)
    assert (await gate.caller(None).get("/ready")).status == 200
