"""`headgate local` with two pools: in each a gate process and a modelled worker, before both one front, executor and
Lambda."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from dispatcher.policies.clocks import Share
from headgate.local.seed import CREDENTIALS, TABLE
from headgate.local.stack import Stack
from headgate.machine.options import Addresses, StackOptions, WorkerGroup
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client
from tests.support.local.stack import run_json

MODELS = {"chat": "model-of-chat", "code": "model-of-code"}
SLOTS = 2
TENANTS = ("quiet", "flood")
CLASSES = {"normal": {"first_token_s": 60}, "night": {"first_token_s": 3600, "deferred": True}}
POOLS = json.dumps({name: {"models": [model]} for name, model in MODELS.items()})


@dataclass(frozen=True)
class PoolsStack:
    addresses: Addresses
    variables: Mapping[str, str]
    """Of an operator's shell."""

    @property
    def keys(self) -> Mapping[str, str]:
        return self.addresses.api_keys

    def client(self, tenant: str = "quiet") -> AsyncOpenAI:
        url = self.addresses.openai_base_url
        return AsyncOpenAI(base_url=url, api_key=self.keys[tenant], max_retries=0, timeout=HANG_S)

    async def headgate(self, *arguments: str) -> dict[str, Any]:
        """Run a command with --json, as an operator does."""
        environment = {**os.environ, **self.variables}
        return await asyncio.to_thread(run_json, *arguments, environment=environment)

    async def invoke(self, function: str, payload: object, **arguments: object) -> Any:
        """Invoke a Lambda function. Return its answer; None for an Event invocation."""
        client, body = aws_client("lambda", self.addresses.aws_endpoint_url), json.dumps(payload).encode()
        reply = await asyncio.to_thread(
            lambda: client.invoke(FunctionName=function, Payload=body, **arguments)["Payload"].read()
        )
        return json.loads(reply) if reply else None

    def kill(self, url: str) -> None:
        """Kill the process with this address."""
        (process,) = (each for each in self.addresses.processes if each.url == url)
        os.kill(process.pid, signal.SIGKILL)


@asynccontextmanager
async def pools_stack(home: Path) -> AsyncIterator[PoolsStack]:
    """Start everything, and end it with the block."""
    groups = tuple(WorkerGroup(pool, {"model": model}) for pool, model in MODELS.items())
    options = StackOptions(
        engine="modelled",
        slots=SLOTS,
        home=home,
        port=0,
        start_timeout_s=HANG_S,
        groups=groups,
        slo_classes=json.dumps(CLASSES),
        tenants={name: Share() for name in TENANTS},
        variables={"HEADGATE_POOLS": POOLS},
    )
    stack = Stack(options)
    try:
        addresses = await stack.start()
        own = {"AWS_ENDPOINT_URL": addresses.aws_endpoint_url, "HEADGATE_TABLE": TABLE, "HEADGATE_POOLS": POOLS}
        yield PoolsStack(addresses, {**CREDENTIALS, **own})
    finally:
        await stack.stop()


def requests_of(rows: dict[str, Any]) -> int:
    """Return the requests of `headgate usage --json`."""
    return sum(row["requests"] for row in rows["usage"])
