"""Two pools as processes: in each a gate process and a modelled worker, before both one front, executor and Lambda.

It starts the parts of `headgate local` (headgate/local/stack.py), which itself has one pool.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from dispatcher.executor import ONLY_BATCHES
from dispatcher.policies.clocks import Share
from headgate.local.aws import LocalAws, headgate_wiring
from headgate.local.fleet import Fleet, Member
from headgate.local.options import StackOptions
from headgate.local.ports import front_ports
from headgate.local.processes import Children
from headgate.local.seed import CREDENTIALS, TABLE, make_bucket, make_queue, make_table, make_tenants, table_store
from headgate.local.stack import base_environment
from tests.support.hang_guard import HANG_S
from tests.support.local.aws_client import aws_client
from tests.support.local.stack import run_json

MODELS = {"chat": "model-of-chat", "code": "model-of-code"}
SLOTS = 2
TENANTS = ("quiet", "flood")
CLASSES = {"normal": {"first_token_s": 60}, "night": {"first_token_s": 3600, "deferred": True}}
GRACE_S = 3.0


@dataclass(frozen=True)
class PoolsStack:
    base_url: str
    aws_url: str
    keys: Mapping[str, str]
    gates: Mapping[str, Member]
    """The gate process of each pool."""
    variables: Mapping[str, str]

    def client(self, tenant: str = "quiet") -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.base_url, api_key=self.keys[tenant], max_retries=0, timeout=HANG_S)

    async def headgate(self, *arguments: str) -> dict[str, Any]:
        """Run a command with --json, as an operator does with the variables of the stack's processes."""
        environment = {**os.environ, **self.variables}
        return await asyncio.to_thread(run_json, *arguments, environment=environment)

    async def invoke(self, function: str, payload: object, **arguments: object) -> Any:
        """Invoke a Lambda function. Return its answer; None for an Event invocation."""
        client, body = aws_client("lambda", self.aws_url), json.dumps(payload).encode()
        reply = await asyncio.to_thread(
            lambda: client.invoke(FunctionName=function, Payload=body, **arguments)["Payload"].read()
        )
        return json.loads(reply) if reply else None


@asynccontextmanager
async def pools_stack(home: Path) -> AsyncIterator[PoolsStack]:
    """Start everything, and end it with the block."""
    async with AsyncExitStack() as ends:

        def children(name: str) -> Children:
            made = Children(f"mark-{home.name}-{name}", home / name / "logs", grace_s=GRACE_S)
            ends.push_async_callback(made.stop)
            return made

        shared = children("shared")
        moto = await shared.spawn_python("moto", ["-m", "headgate.local.moto.server"], environment=base_environment())
        moto_url = str((await moto.announcement(HANG_S))["url"])
        await make_table(moto_url)
        store = table_store(moto_url)
        ends.push_async_callback(store.close)
        keys = await make_tenants(store, {name: Share() for name in TENANTS}, 1000)
        variables = await _variables(moto_url)
        environment = {**base_environment(), **variables}
        aws = LocalAws(shared, environment, moto_url=moto_url, wiring=headgate_wiring(environment, HANG_S))
        ends.push_async_callback(aws.stop)
        aws_url = await aws.start()
        fleets = {name: _fleet(children(name), environment, home, name) for name in MODELS}
        for fleet in fleets.values():
            ends.push_async_callback(fleet.stop, GRACE_S)
            await fleet.start([])
        front = Fleet(_options(home, None), shared, environment, "", [ONLY_BATCHES])
        ends.push_async_callback(front.stop, GRACE_S)
        (port,) = front_ports("127.0.0.1", 0, 1)
        url = (await front.start_front(0, port)).url
        await front.start_executor(0)
        gates = {name: next(each for each in fleet.members if each.role == "gate") for name, fleet in fleets.items()}
        yield PoolsStack(f"{url}/v1", aws_url, keys, gates, variables)


async def _variables(moto_url: str) -> dict[str, str]:
    """Return the variables of every process."""
    return {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HEADGATE_TABLE": TABLE,
        "HEADGATE_QUEUE_URL": await make_queue(moto_url),
        "HEADGATE_FILES": await make_bucket(moto_url),
        "HEADGATE_POOLS": json.dumps({name: {"models": [model]} for name, model in MODELS.items()}),
        "HEADGATE_SLO_CLASSES": json.dumps(CLASSES),
        "HEADGATE_WORKER_SECRET": "secret-of-the-tests-0123456789",
        "POWERTOOLS_SERVICE_NAME": "headgate",
        "POWERTOOLS_METRICS_NAMESPACE": "headgate",
    }


def _fleet(children: Children, environment: Mapping[str, str], home: Path, pool: str) -> Fleet:
    return Fleet(_options(home / pool, MODELS[pool]), children, {**environment, "HEADGATE_POOL": pool}, pool)


def _options(home: Path, model: str | None) -> StackOptions:
    return StackOptions(engine="modelled", model=model, slots=SLOTS, home=home, start_timeout_s=HANG_S)


def requests_of(rows: dict[str, Any]) -> int:
    """Return the requests of `headgate usage --json`."""
    return sum(row["requests"] for row in rows["usage"])
