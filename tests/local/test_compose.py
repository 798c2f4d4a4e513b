"""The commands of examples/compose/compose.yaml as processes of this machine, without Docker.

Each service runs with the command and the variables that the file gives it. Replaced are what containers have and
processes have not: host names, fixed ports and folders at the root. DynamoDB Local is the npm package's; without it (or
Java), moto's server stands in. The server that runs already is `headgate serve` with the modelled engine.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from headgate.local import dynamodb_local
from headgate.local.stack import base_environment
from headgate.machine.places import front_ports
from headgate.machine.processes import Children
from tests.support.compose import read_compose
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import moto_server
from tests.support.local.stack import ROOT, Served, run_json, serve

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
FILE = ROOT / "examples" / "compose" / "compose.yaml"
HERE = "127.0.0.1"
ENDS_BY_ITSELF, IN_BACKGROUND = ("table",), ("gate", "executor", "worker", "front")


@dataclass(frozen=True)
class Composed:
    base_url: str
    variables: Mapping[str, str]
    """Of the service `headgate`, with which an operator runs commands."""

    async def headgate(self, *arguments: str) -> dict[str, Any]:
        return await asyncio.to_thread(run_json, *arguments, environment={**os.environ, **self.variables})


@pytest.fixture(scope="module")
def existing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of OpenAI's API that runs already, with a key of its own."""
    served = serve(tmp_path_factory.mktemp("existing") / "data", "--slots", "8")
    yield served
    served.stop()


@asynccontextmanager
async def composed(home: Path, server: Served) -> AsyncIterator[Composed]:
    """Start the services in the order of the file, and end them with the block."""
    async with AsyncExitStack() as ends:
        children = Children(f"mark-{home.name}", home / "logs", grace_s=3.0)
        ends.push_async_callback(children.stop)
        table_url = await _dynamodb(children)
        (port,) = front_ports(HERE, 0, 1)
        values = {
            "HEADGATE_WORKER_SECRET": "s" * 48,
            "ENGINE_URL": server.openai_base_url,
            "ENGINE_API_KEY": server.api_keys["default"],
            "ENGINE_BATCH": "4",
            "ENGINE_SLOTS": "8",
        }
        services = read_compose(FILE, values)["services"]

        def environment(name: str) -> dict[str, str]:
            own = {**services[name]["environment"], "AWS_ENDPOINT_URL": table_url}
            return {**base_environment(), **own, "HEADGATE_FILES": f"folder:{home / 'files'}"}

        for name in ENDS_BY_ITSELF:
            child = await children.spawn_python(
                name, _arguments(services[name], home, 0), environment=environment(name)
            )
            assert await child.wait() == 0, child.log_tail()
        for name in IN_BACKGROUND:
            arguments = _arguments(services[name], home, port if name == "front" else 0)
            child = await children.spawn_python(name, arguments, environment=environment(name))
            if name != "front":
                await child.announcement(HANG_S)
        base_url = f"http://{HERE}:{port}"
        await _ready(base_url)
        yield Composed(f"{base_url}/v1", environment("headgate"))


async def _dynamodb(children: Children) -> str:
    if dynamodb_local.find() is not None:
        return (await dynamodb_local.start(children, HANG_S))[1]
    moto = await children.spawn_python("moto", ["-m", "headgate.local.moto_server"], environment=base_environment())
    return str((await moto.announcement(HANG_S))["url"])


def _arguments(service: Mapping[str, Any], home: Path, port: int) -> list[str]:
    """Return the arguments of Python for a service's command."""
    words = list(service["command"])
    words = ["-m", "headgate.cli", *words[1:]] if words[0] == "headgate" else words[1:]
    for option, value in {"--host": HERE, "--port": str(port), "--home": str(home / "worker")}.items():
        if option in words:
            words[words.index(option) + 1] = value
    return words


async def _ready(base_url: str) -> None:
    """Wait until the front has a worker."""
    async with asyncio.timeout(HANG_S), httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                if (await client.get(f"{base_url}/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)


async def test_two_tenants_before_a_server_that_runs_already(existing: Served, tmp_path: Path) -> None:
    async with composed(tmp_path, existing) as service:
        keys = {name: (await service.headgate("tenants", "create", name))["api_key"] for name in ("acme", "other")}
        clients = {
            name: AsyncOpenAI(base_url=service.base_url, api_key=key, max_retries=0, timeout=HANG_S)
            for name, key in keys.items()
        }
        (model,) = (await clients["acme"].models.list()).data
        assert model.id == existing.model
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=model.id, messages=[{"role": "user", "content": "hello"}], max_tokens=5
                )
                for client in clients.values()
            )
        )
        assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [5, 5]
        stream = await clients["other"].completions.create(model=model.id, prompt="hello", max_tokens=7, stream=True)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        found = await service.headgate("doctor", "after", "--base-url", service.base_url, "--key", keys["acme"])
        assert {each["check"]: each["result"] for each in found["findings"]} == dict.fromkeys(
            ("table", "log", "workers", "shares", "request"), "ok"
        )
        used = await service.headgate("usage")
        tokens = {row["tenant"]: row["output_tokens"] for row in used["usage"]}
        assert (tokens["acme"] >= 5, tokens["other"]) == (True, 12)
        for client in clients.values():
            await client.close()


def test_the_table_is_made_once(tmp_path: Path) -> None:
    """A restart of the service `table` finds what it made."""
    with moto_server() as url:
        environment = {**os.environ, "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}
        environment |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "HEADGATE_TABLE": "compose"}
        said = [_table(environment) for _ in range(2)]
        assert said == [(0, "created the table compose\n", ""), (0, "the table compose exists\n", "")]
        code, _, error = _table({**environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
        assert (code, error.count("\n")) == (2, 1)
        assert "check AWS_ENDPOINT_URL" in error


def _table(environment: Mapping[str, str]) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "headgate.cli", "table", "create", "--wait-s", "2"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=ROOT, env=dict(environment)
    )
    return ended.returncode, ended.stdout, ended.stderr
