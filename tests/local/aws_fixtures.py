"""A local AWS with small functions of the tests' own, and unmodified boto3 clients for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headgate.local.aws import LocalAws, Wiring
from headgate.local.aws_lambda.invocation import FunctionSpec
from headgate.machine.processes import Children
from tests.support.hang_guard import HANG_S

HANDLERS = "tests.local.handlers."


def function(name: str, handler: str | None = None, **more: Any) -> FunctionSpec:
    settings: dict[str, Any] = {"timeout_s": HANG_S, "init_timeout_s": HANG_S, "concurrency": 1, **more}
    return FunctionSpec(name=name, handler=HANDLERS + (handler or f"basic.{name}"), **settings)


@asynccontextmanager
async def local_aws(
    home: Path, functions: Sequence[FunctionSpec], moto_url: str = "http://127.0.0.1:1", **more: Any
) -> AsyncIterator[tuple[LocalAws, str]]:
    """Started, and its URL; all ended after."""
    children = Children("mark-" + home.name, home / "logs", grace_s=1.0)
    wiring = more.pop("wiring", None) or Wiring(functions)
    aws = LocalAws(children, {}, moto_url=moto_url, wiring=wiring, event_retry_delays_s=(0.0, 0.0), **more)
    try:
        yield aws, await aws.start()
    finally:
        await aws.stop()
        await children.stop()
        assert children.survivors() == []


async def call(method: Callable[..., Any], **arguments: Any) -> Any:
    """A boto3 call, off this loop: the endpoint that it calls runs on it."""
    return await asyncio.to_thread(method, **arguments)
