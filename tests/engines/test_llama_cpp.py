"""The engine `openai` before llama.cpp's own server with a random model: a real foreign server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, EngineEvent, Finished, Token, WorkOrder, own_order
from gpu_worker.engines.openai.engine import OpenAiEngine
from gpu_worker.engines.openai.server_api import ServerOptions
from gpu_worker.policies.fairness.registry import make_policy
from headgate.machine.places import usable
from tests.engines.engine_kinds import end_of, needs_torch
from tests.support.hang_guard import HANG_S
from tests.support.llama_cpp.server import CONTEXT_TOKENS

pytestmark = [
    *needs_torch,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp, llama.cpp's server, has no wheel here"),
]
QUESTION = [{"role": "user", "content": "What is served next?"}]
PROMPT_TOKENS = 17
"""Of QUESTION with the model's template, as the server counts."""


@pytest.fixture(scope="module")
def model_file(home: Path) -> Path:
    from gpu_worker.engines.random_llama import model_folder
    from tests.support.llama_cpp.gguf_model import write_gguf

    folder, _ = model_folder(None, home)
    write_gguf(folder, home / "tiny.gguf")
    return home / "tiny.gguf"


class Server:
    def __init__(self, file: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self._command = [sys.executable, "-m", "tests.support.llama_cpp.server", str(file), str(port)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=quiet, stderr=quiet)

    async def slots(self) -> list[dict[str, Any]]:
        """Return the state of each of the server's places."""
        async with httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client:
            found: list[dict[str, Any]] = (await client.get(self.url.removesuffix("/v1") + "/slots")).json()
        return found

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def engine_before(file: Path) -> AsyncIterator[tuple[OpenAiEngine, Server]]:
    server = Server(file, usable("127.0.0.1", 0))
    engine = OpenAiEngine(make_policy("tiered:vtc"), ServerOptions(server.url), places=2)
    await server.start()
    try:
        await engine.start()
        yield engine, server
    finally:
        await engine.stop()
        await server.kill()


def chat(name: str, tokens: int = 8, **changes: Any) -> WorkOrder:
    fields = {name: changes.pop(name) for name in ("expected_tokens",) if name in changes}
    return own_order(name, "a", {"messages": QUESTION, **changes}, tokens, Endpoint.CHAT, **fields)


async def events_of(engine: OpenAiEngine, request: WorkOrder) -> list[EngineEvent]:
    return [event async for event in engine.generate(request)]


def text_of(events: list[EngineEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))


async def killed_while(engine: OpenAiEngine, server: Server, request: WorkOrder) -> None:
    async for event in engine.generate(request):
        if isinstance(event, Token) and event.output_tokens == 5:
            await server.kill()


def is_whole(event: object, output_tokens: int) -> bool:
    """Return whether an answer ended at its limit. The server finds a part of the prompt in its cache, and says so."""
    assert isinstance(event, Finished)
    assert 0 <= event.cached_tokens < PROMPT_TOKENS
    return replace(event, cached_tokens=0) == Finished("length", PROMPT_TOKENS, output_tokens)


async def test_what_llama_cpp_supports_arrives_whole(model_file: Path) -> None:
    async with engine_before(model_file) as (engine, _):
        assert engine.facts.context_tokens == CONTEXT_TOKENS
        several = await asyncio.gather(*(events_of(engine, chat(f"r{number}", 8 + number)) for number in range(6)))
        assert all(is_whole(events[-1], 8 + number) for number, events in enumerate(several))
        assert engine.stats().tenants["a"].output_tokens == sum(8 + number for number in range(6))

        logprobs = await events_of(engine, chat("logprobs", logprobs=True, top_logprobs=2))
        assert all(event.logprobs for event in logprobs if isinstance(event, Token) and event.text)


async def test_a_json_schema_is_obeyed(model_file: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"count": {"type": "integer"}, "word": {"type": "string", "maxLength": 5}},
        "required": ["count", "word"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with engine_before(model_file) as (engine, _):
        events = await events_of(engine, chat("schema", 400, response_format=form))
        assert end_of(events).reason == "stop"
        found = json.loads(text_of(events))
        assert isinstance(found["count"], int)
        assert len(found["word"]) <= 5


async def test_an_answer_without_a_limit_ends_at_the_bound_or_with_the_context(model_file: Path) -> None:
    async with engine_before(model_file) as (engine, _):
        limited = (await events_of(engine, chat("limited", 1000, expected_tokens=5)))[-1]
        assert is_whole(limited, 1000), "the server got the limit"
        cut = (await events_of(engine, chat("cut", 1800, expected_tokens=5)))[-1]
        assert isinstance(cut, Finished)
        assert (cut.reason, cut.output_tokens) == ("length", 1800), "the worker ended the answer"
        unbounded = (await events_of(engine, chat("unbounded", 100_000, expected_tokens=5)))[-1]
        assert isinstance(unbounded, Finished)
        assert abs(unbounded.input_tokens + unbounded.output_tokens - CONTEXT_TOKENS) <= 1


async def test_an_abort_frees_the_place_here_and_in_the_server(model_file: Path) -> None:
    async with engine_before(model_file) as (engine, server):
        stream = engine.generate(chat("endless", 1900))
        async for event in stream:
            if isinstance(event, Token):
                break
        await stream.aclose()
        slots = await server.slots()
        while any(slot["is_processing"] for slot in slots):
            await asyncio.sleep(0.01)
            slots = await server.slots()
        assert all(slot["next_token"][0]["n_decoded"] < 1900 for slot in slots if slot.get("next_token"))
        assert is_whole((await events_of(engine, chat("after")))[-1], 8)


async def test_a_server_that_is_killed_ends_its_requests_and_the_next_one_serves(model_file: Path) -> None:
    async with engine_before(model_file) as (engine, server):
        with pytest.raises(EngineError):
            await killed_while(engine, server, chat("cut", 1900))
        await server.start()
        again = OpenAiEngine(make_policy("tiered:vtc"), ServerOptions(server.url), places=2)
        await again.start()
        try:
            assert is_whole((await events_of(again, chat("next")))[-1], 8)
        finally:
            await again.stop()
