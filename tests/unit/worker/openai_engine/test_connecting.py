"""The server at the start, and a server that goes away and comes back; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineFacts, Finished, own_order
from gpu_worker.engines.openai.engine import OpenAiEngine
from gpu_worker.engines.openai.server_api import ServerOptions
from gpu_worker.engines.registry import EngineUnavailable, make_engine
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.policies.fairness.tiered import make_queue
from tests.support.worker.openai_server import CARD, MODEL, FakeServer, counting, last, options, outcome, says
from tests.support.world.virtual_time import LoopClock, run

REQUEST = own_order("a", "t", {"messages": [{"role": "user", "content": "x"}]}, 3, Endpoint.CHAT)


def made(server: FakeServer, **given: Any) -> OpenAiEngine:
    clock = asyncio.get_running_loop().time
    return OpenAiEngine(make_queue("vtc"), options(server, **given), places=2, monotonic_s=clock)


def facts(server: FakeServer, **given: Any) -> EngineFacts:
    async def story() -> EngineFacts:
        engine = made(server, **given)
        await engine.start()
        await engine.stop()
        return engine.facts

    return run(story())


class TestFacts:
    def test_are_those_of_the_only_model(self) -> None:
        found = facts(FakeServer())
        assert (found.model, found.context_tokens) == (MODEL, 1000)
        assert {"chat", "completion", "tools", "n", "vllm"} <= found.capabilities

    def test_of_llama_cpp_have_the_context_of_its_meta(self) -> None:
        card = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4096, "n_ctx_train": 131072}}
        found = facts(FakeServer(cards=[card]))
        assert found.context_tokens == 4096
        assert not {"n", "logprobs", "vllm"} & found.capabilities

    def test_may_be_set(self) -> None:
        cards: list[dict[str, Any]] = [{"id": "m"}, {"id": "n", "max_model_len": 5}]
        names = frozenset({"chat"})
        found = facts(FakeServer(cards=cards), model="m", context_tokens=77, capabilities=names)
        assert (found.model, found.context_tokens, found.capabilities) == ("m", 77, names)

    @pytest.mark.parametrize(
        ("cards", "given", "message"),
        [
            ([CARD, {**CARD, "id": "b"}], {}, r"2 models \(b, their-model\): choose one with --model"),
            ([], {}, "no models: choose one with --model"),
            ([CARD], {"model": "other"}, r"no model 'other'; it has 1 models \(their-model\)"),
            ([{"id": "m"}], {}, "does not report its context length: set it with --context-tokens"),
            ([{"id": "m", "max_model_len": -3}], {}, "--context-tokens"),
            ([{"id": "m", "max_model_len": "8"}], {}, "--context-tokens"),
            ([{"id": 5}], {}, "choose one with --model"),
        ],
    )
    def test_that_are_missing_are_asked_for(self, cards: Any, given: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            facts(FakeServer(cards=cards), **given)

    @pytest.mark.parametrize("server", [FakeServer(cards=[]), FakeServer(models_status=500), FakeServer(cards=["x"])])  # type: ignore[list-item]
    def test_that_are_all_set_need_no_list_of_models(self, server: FakeServer) -> None:
        found = facts(server, model="m", context_tokens=77, probe=True)
        assert (found.model, found.context_tokens, server.bodies[0]["model"]) == ("m", 77, "m")

    def test_are_unknown_before_the_start(self) -> None:
        with pytest.raises(RuntimeError, match="after start"):
            _ = OpenAiEngine(make_queue("vtc"), ServerOptions("http://x"), places=1).facts


class TestStart:
    @pytest.mark.parametrize(("status", "advice"), [(401, "check the server's key"), (404, "usually ends in /v1")])
    def test_fails_at_once_when_no_waiting_helps(self, status: int, advice: str) -> None:
        with pytest.raises(ValueError, match=f"GET http://engine/v1/models: HTTP status {status}: .*{advice}"):
            facts(FakeServer(models_status=status))

    @pytest.mark.virtual_time
    async def test_waits_until_the_server_has_generated_a_token(self) -> None:
        server = FakeServer(status=503)
        engine, loop = made(server, probe=True), asyncio.get_running_loop()
        loop.call_later(30.2, setattr, server, "status", 200)
        began_s = loop.time()
        await engine.start()
        await engine.stop()
        took_s, bodies = loop.time() - began_s, server.bodies
        assert 30 < took_s < 31
        assert bodies[-1]["max_tokens"] == 1

    def test_fails_when_the_server_does_not_answer(self) -> None:
        with pytest.raises(TimeoutError, match="no server answers at http://engine/v1: ConnectError"):
            facts(FakeServer(is_gone=True))

    def test_fails_at_once_when_the_server_refuses(self) -> None:
        refusal = says(b'{"error": {"message": "no chat template"}}')
        with pytest.raises(ValueError, match="refuses a chat request: no chat template: set what it supports"):
            facts(FakeServer(refusal, status=400), probe=True)

    @pytest.mark.parametrize("url", ["engine", "ftp://engine", "http://", "http://engine:port/v1"])
    async def test_needs_a_url(self, url: str) -> None:
        engine = OpenAiEngine(make_queue("vtc"), ServerOptions(url), places=1)
        with pytest.raises(ValueError, match="is not a URL such as"):
            await engine.start()

    def test_needs_the_option(self, tmp_path: Any) -> None:
        with pytest.raises(EngineUnavailable, match="needs --url"):
            make_engine("openai", policy="vtc", model=None, batch=1, home=tmp_path)


class TestAServerThatGoes:
    def _story(self, server: FakeServer, back_s: float | None = 5.0, **changed: Any) -> Any:
        async def story() -> Any:
            loop = asyncio.get_running_loop()
            engine = SupervisedEngine(lambda: made(server, wait_s=60.0), LoopClock(), hang_s=300.0, apart=at_once)
            await engine.start()
            server.is_gone = True
            for name, value in changed.items():
                setattr(server, name, value)
            if back_s is not None:
                loop.call_later(back_s, setattr, server, "is_gone", False)
            _, error = await outcome(engine, REQUEST)  # type: ignore[arg-type]
            assert error is not None
            assert (error.code, engine.serves()) == ("engine_restarted", False)
            while not engine.serves() and not engine.hopeless.is_set():
                await asyncio.sleep(0.1)
            again = None if engine.hopeless.is_set() else await outcome(engine, REQUEST)  # type: ignore[arg-type]
            await engine.stop()
            return again, engine.restarts

        return run(story())

    def test_is_used_again_when_it_is_back(self) -> None:
        (events, error), restarts = self._story(FakeServer())
        assert (error, restarts) == (None, 1)
        assert last(events) == Finished("length", 7, 3)

    @pytest.mark.parametrize("changed", [{"cards": [{**CARD, "id": "b"}]}, {"cards": [{**CARD, "max_model_len": 9}]}])
    def test_is_not_used_with_another_model(self, changed: dict[str, Any]) -> None:
        assert self._story(FakeServer(), **changed) == (None, 0)

    def test_ends_the_worker_if_it_stays_away(self) -> None:
        assert self._story(FakeServer(), back_s=None) == (None, 0)

    @pytest.mark.virtual_time
    async def test_is_still_there_if_it_took_one_connection_not(self) -> None:
        class Busy(FakeServer):
            async def handle_async_request(self, request: Any) -> Any:
                if request.method == "POST" and not self.bodies:
                    self.bodies.append({})
                    self.is_gone = True
                try:
                    return await super().handle_async_request(request)
                finally:
                    self.is_gone = False

        engine = made(Busy())
        await engine.start()
        (_, first), (_, second) = [await outcome(engine, REQUEST) for _ in range(2)]
        await engine.stop()
        assert first is not None
        assert (first.code, second) == ("generation_failed", None)


@pytest.mark.virtual_time
async def test_a_server_that_hangs_ends_its_requests_and_is_connected_again() -> None:
    async def hangs(body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        if body["max_tokens"] == 3:
            await asyncio.Event().wait()
        async for part in counting(body):
            yield part

    server = FakeServer(hangs)
    engine = SupervisedEngine(lambda: made(server, probe=True), LoopClock(), hang_s=300.0, apart=at_once)
    await engine.start()
    _, error = await outcome(engine, REQUEST)  # type: ignore[arg-type]
    assert error is not None
    while not engine.serves():
        await asyncio.sleep(0.1)
    await engine.stop()
    assert (error.code, engine.restarts, server.open) == ("engine_restarted", 1, 0)


async def at_once(make: Any) -> Any:
    """In virtual time a thread would take for ever."""
    return make()


@pytest.mark.parametrize(("breaks", "code"), [(1, None), (2, "generation_failed")])
@pytest.mark.virtual_time
async def test_a_connection_that_ends_before_the_answer_is_tried_once_more(breaks: int, code: str | None) -> None:
    engine = made(server := FakeServer())
    await engine.start()
    server.breaks = breaks
    events, error = await outcome(engine, REQUEST)
    await engine.stop()
    assert error is not None or last(events) == Finished("length", 7, 3)
    assert (None if error is None else error.code) == code
