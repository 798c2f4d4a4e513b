"""What tenants, an operator and AWS do with a recorded stack, so that each role makes each call that it may make."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import boto3
import httpx

from headgate.cli.tenants.admin_function import FunctionAdmin
from headgate.local.aws_lambda.invocation import REGION
from tests.support.hang_guard import HANG_S
from tests.support.iam.recorder import OWN_KEY
from tests.support.iam.stack import (
    ADMIN,
    FRONT,
    INVOKE,
    LAMBDA_FRONT,
    MODEL,
    MODEL_NAME,
    OPERATOR,
    RESULT,
    TOKEN,
    WORKER,
    RecordedStack,
)

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 4}
PART_BYTES = 8 * 1024 * 1024


async def play(stack: RecordedStack) -> None:
    """Play everything. Each phase leaves its processes for the next one."""
    for number, role in enumerate((FRONT, LAMBDA_FRONT)):
        await stack.fleets[role].start_front(number, stack.ports[number])
    await administered(stack)
    await without_workers(stack)
    for phase in (led_by_the_worker, led_by_the_front, without_gates):
        await phase(stack)


async def administered(stack: RecordedStack) -> None:
    """A tenant from its creation to its end, and the record of it."""
    session = boto3.Session(OWN_KEY, "any", region_name=REGION)
    named: dict[str, Any] = {"tenant": "try"}

    async def do(what: str, **fields: Any) -> dict[str, Any]:
        identity = FunctionAdmin("headgate-admin", session).identity()
        answer = await stack.invoke(ADMIN, {"identity": identity, "command": {"do": what, **fields}})
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    await do("create", **named, settings={})
    await do("change", **named, settings={"weight": 2.0})
    await do("rotate-key", **named)
    keys = (await do("show", **named))["keys"]
    await do("revoke-key", **named, prefix=keys[0]["prefix"])
    await do("delete", **named)
    await do("list")
    assert (await do("audit", month=datetime.now(UTC).strftime("%Y-%m")))["records"]


async def without_workers(stack: RecordedStack) -> None:
    """An empty pool: each process that a request reaches starts the first worker. The function waits for it."""
    for role in (FRONT, LAMBDA_FRONT):
        await stack.set_desired(0)
        async with _client(stack, role) as client:
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 503
    await stack.set_desired(0)
    waiting = asyncio.create_task(stack.invoke(INVOKE, _payload(stack)))
    while await stack.desired() == 0:
        await asyncio.sleep(0.1)
    await stack.set_desired(0)
    await stack.sweep()
    await stack.fleets[WORKER].start_worker(0)
    assert (await waiting)["choices"]


async def led_by_the_worker(stack: RecordedStack) -> None:
    """The gate process of the worker's task leads."""
    await stack.fleets[WORKER].start_gate(0)
    for _ in range(2):
        assert (await stack.invoke(INVOKE, _payload(stack, idempotency_key="one")))["choices"]
    await detached(stack, "worker")
    await over_http(stack, LAMBDA_FRONT)
    await operated(stack)
    await copied_model(stack)


async def led_by_the_front(stack: RecordedStack) -> None:
    """The gate process of the front's task leads."""
    await stack.fleets[FRONT].start_gate(0)
    await stack.fleets[FRONT].start_executor(0)
    await over_http(stack, FRONT)
    await files_and_batches(stack)
    await stack.kill_gate(WORKER)
    await detached(stack, "front")


async def without_gates(stack: RecordedStack) -> None:
    """A worker alone: the functions and the worker write the log."""
    await stack.kill_gate(FRONT)
    for _ in range(2):
        assert (await stack.invoke(INVOKE, _payload(stack, idempotency_key="two")))["choices"]
    await over_http(stack, LAMBDA_FRONT)
    await stack.sweep()


async def detached(stack: RecordedStack, name: str) -> None:
    """More calls than the worker has slots: those that wait are executed by the queue's function."""
    keys = [f"{name}-{number}" for number in range(4)]
    calls = [stack.invoke(INVOKE, _payload(stack, max_tokens=60, idempotency_key=key)) for key in keys]
    answers = await asyncio.gather(*calls)
    assert any(each.get("status") == "queued" for each in answers), answers
    for key in keys:
        while "response" not in await stack.invoke(RESULT, {"api_key": stack.keys["acme"], "id": key}):
            await stack.sweep()
            await asyncio.sleep(0.5)


async def operated(stack: RecordedStack) -> None:
    """An operator's commands, and the token of the page."""
    assert (await stack.operate("top", "--once"))["workers"]
    assert (await stack.operate("plan"))["models"]
    assert (await stack.operate("usage"))["usage"]
    assert (await stack.operate("tenants", "audit"))["records"]
    assert (await stack.operate("doctor", "after"))["findings"]
    secrets = boto3.client(
        "secretsmanager", REGION, endpoint_url=stack.url, aws_access_key_id=OPERATOR, aws_secret_access_key="any"
    )
    token = secrets.get_secret_value(SecretId=stack.environments[FRONT]["HEADGATE_OPERATOR_TOKEN_ARN"])
    assert token["SecretString"] == TOKEN


async def over_http(stack: RecordedStack, role: str) -> None:
    """A tenant's and the operator's requests over HTTP."""
    async with _client(stack, role) as client:
        for _ in range(2):
            await _ok(client.post("/v1/chat/completions", json=CHAT, headers={"Idempotency-Key": f"key-{role}"}))
        await _ok(client.post("/v1/chat/completions", json={**CHAT, "stream": True}))
        kept = await _ok(client.post("/v1/responses", json={"model": MODEL_NAME, "input": "hello", "store": True}))
        again = {"model": MODEL_NAME, "input": "more", "previous_response_id": kept["id"]}
        await _ok(client.post("/v1/responses", json=again))
        await _ok(client.get(f"/v1/responses/{kept['id']}"))
        await _ok(client.delete(f"/v1/responses/{kept['id']}"))
        await _ok(client.get("/v1/usage"))
        await _ok(client.get("/operator", headers={"Authorization": f"Bearer {TOKEN}"}))


async def files_and_batches(stack: RecordedStack) -> None:
    """The batch API, with a file in parts and an upload that breaks off."""
    lines = [json.dumps({"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": CHAT})]
    async with _client(stack, FRONT) as client:
        file = await _upload(client, "\n".join(lines).encode())
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = await _ok(client.post("/v1/batches", json=asked))
        while batch["status"] not in ("completed", "failed"):
            await asyncio.sleep(0.1)
            batch = await _ok(client.get(f"/v1/batches/{batch['id']}"))
        assert batch["status"] == "completed", batch
        await _ok(client.get(f"/v1/files/{batch['output_file_id']}/content"))
        cancelled = await _ok(client.post("/v1/batches", json=asked))
        await _ok(client.post(f"/v1/batches/{cancelled['id']}/cancel"))
        await _ok(client.get("/v1/batches"))
        await _ok(client.get("/v1/files"))
        large = await _upload(client, b"x" * (PART_BYTES + 1))
        await _ok(client.delete(f"/v1/files/{large}"))


async def copied_model(stack: RecordedStack) -> None:
    """The container `weights` of a worker's task."""
    command = ["-m", "gpu_worker.weights", MODEL, str(stack.home / "model")]
    child = await stack.children.spawn(
        "weights", [sys.executable, *command], environment=stack.environments[WORKER], vital=False
    )
    assert await child.wait() == 0, child.log_tail()


def _client(stack: RecordedStack, role: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {stack.keys['acme']}"}
    return httpx.AsyncClient(base_url=stack.front_url(role), headers=headers, timeout=HANG_S, trust_env=False)


def _payload(stack: RecordedStack, **fields: Any) -> Mapping[str, Any]:
    return {"api_key": stack.keys["acme"], **CHAT, **fields}


async def _ok(answering: Any) -> Any:
    answer = await answering
    assert answer.is_success, (answer.status_code, answer.text)
    return answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text


async def _upload(client: httpx.AsyncClient, content: bytes) -> str:
    files: dict[str, tuple[str | None, bytes]] = {"file": ("requests.jsonl", content), "purpose": (None, b"batch")}
    return str((await _ok(client.post("/v1/files", files=files)))["id"])
