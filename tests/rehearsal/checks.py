"""What the rehearsal checks on the running stack, with the tools of tenants, administrators and operators."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai

MODELS = ("chat", "code")
"""Of both pools, which have the same names."""
MODEL, *_ = MODELS
SEEN_IN_MOTO = {
    *("the stack is created", "a gate process leads", "an administrator is named"),
    *("a worker retires", "the policies are sufficient"),
}
"""Rows of `headgate doctor deployed` that moto can show. It starts no task, instance or health check."""
COMMAND_S = 300.0
BATCH_S = 120.0
READY_S = 180.0
FLOOD = 300

Say = Callable[[str], None]


class Checks:
    """`environment`: of an administrator's machine. Every check raises AssertionError with what it saw."""

    def __init__(
        self, base_url: str, aws: Callable[[str], Any], environment: Mapping[str, str], file: Path, say: Say
    ) -> None:
        self._base_url, self._aws, self._environment, self._file, self._say = base_url, aws, environment, file, say
        self.keys: dict[str, str] = {}

    async def run(self, operator_token: str) -> None:
        """Run all checks, one after another."""
        await asyncio.to_thread(self._administers)
        await self._is_ready()
        await asyncio.to_thread(self._answers_over_http)
        await asyncio.to_thread(self._answers_invocations)
        await asyncio.to_thread(self._runs_a_batch)
        await asyncio.to_thread(self._shows_the_page, operator_token)
        await asyncio.to_thread(self._is_healthy_and_fair)
        await asyncio.to_thread(self._is_deployed)
        await self._scales_out()

    def headgate(self, *arguments: str, may_fail: bool = False) -> dict[str, Any]:
        """Run a command with --json, and return its object."""
        command = [sys.executable, "-m", "headgate.cli", *arguments, "--json"]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, check=False, env=dict(self._environment)
        )
        found: dict[str, Any] = json.loads(ended.stdout or "{}")
        wrong = [each for each in found.get("findings", []) if each["result"] == "failed"]
        assert ended.returncode == 0 or (may_fail and found), f"headgate {arguments}: {wrong or ended.stderr}"
        return found

    def _administers(self) -> None:
        for name in ("quiet", "flood"):
            created = self.headgate("tenants", "create", name, "--max-tokens", "512")
            self.keys[name] = str(created["api_key"])
        records = self.headgate("tenants", "audit")["records"]
        actions = sorted({str(record["action"]) for record in records})
        assert actions == ["key.create", "tenant.create"], actions
        self._say(f"headgate-admin created two tenants; {len(records)} audit records of {records[0]['actor']}")

    async def _is_ready(self) -> None:
        """Wait for the first worker of each pool, which the sweep starts by the desired counts."""
        root = self._base_url.removesuffix("/v1")
        async with httpx.AsyncClient() as http, asyncio.timeout(READY_S):
            while (await http.get(f"{root}/ready")).status_code != 200:
                await asyncio.sleep(0.5)
        async with asyncio.timeout(READY_S):
            for pool in MODELS:
                while not await asyncio.to_thread(self._serving, pool):
                    await asyncio.sleep(0.5)
        self._say("the sweep set the desired counts, and the first worker joined each pool")

    def _openai(self, tenant: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=self._base_url, api_key=self.keys[tenant], max_retries=0)

    def _answers_over_http(self) -> None:
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        for model in MODELS:
            stream = self._openai("quiet").chat.completions.create(
                model=model, messages=messages, max_tokens=20, stream=True, stream_options={"include_usage": True}
            )
            usages = [chunk.usage for chunk in stream if chunk.usage is not None]
            assert [usage.completion_tokens for usage in usages] == [20], usages
        self._say("a chat of each pool was streamed to an unmodified OpenAI client: 20 tokens")

    def _answers_invocations(self) -> None:
        body = {"api_key": self.keys["quiet"], "model": MODEL, "prompt": "hello", "max_tokens": 5}
        for model in MODELS:
            answer = self._invoked("headgate-invoke", {**body, "model": model})
            assert (answer["model"], answer["usage"]["completion_tokens"]) == (model, 5), answer
        event = {"FunctionName": "headgate-invoke", "InvocationType": "Event"}
        self._aws("lambda").invoke(**event, Payload=json.dumps({**body, "idempotency_key": "rehearsed"}).encode())
        asked = {"api_key": self.keys["quiet"], "id": "rehearsed"}
        for _ in range(60):
            result = self._invoked("headgate-result", asked)
            if result.get("status") == "done":
                break
            self._pause()
        assert result.get("status") == "done", result
        self._say("lambda.invoke answered; an Event invocation was executed, and headgate-result has its answer")

    def _runs_a_batch(self) -> None:
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        client = self._openai("quiet")
        file = client.files.create(file=("lines.jsonl", json.dumps({**line, "body": body}).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        for _ in range(int(BATCH_S)):
            batch = client.batches.retrieve(batch.id)
            if batch.status in ("completed", "failed", "expired"):
                break
            self._pause()
        assert batch.status == "completed", batch
        assert batch.output_file_id is not None, batch
        answers = client.files.content(batch.output_file_id).text.splitlines()
        assert len(answers) == 1, answers
        self._say("a batch was completed, with its files in the stack's bucket")

    def _shows_the_page(self, token: str) -> None:
        root = self._base_url.removesuffix("/v1")
        refused = httpx.get(f"{root}/operator")
        assert refused.status_code == 401, refused.status_code
        shown = httpx.get(f"{root}/operator", headers={"authorization": f"Bearer {token}"})
        assert shown.status_code == 200, shown.text
        assert "quiet" in shown.text, "the page names the tenants of the last minute"
        self._say("the operator's page opens with the token of the stack's secret")

    def _is_healthy_and_fair(self) -> None:
        asked = ("--base-url", self._base_url, "--key", self.keys["quiet"], "--fairness")
        for finding in self.headgate("doctor", "after", *asked)["findings"]:
            self._say(f"doctor: {finding['check']}: {finding['seen']}")

    def _is_deployed(self) -> None:
        """Go through what only AWS can show: here most of it fails or is skipped, and some rows must not."""
        found = self.headgate("doctor", "deployed", "--file", str(self._file), may_fail=True)["findings"]
        seen = {finding["check"]: finding["result"] for finding in found}
        assert {seen[check] for check in SEEN_IN_MOTO} == {"ok"}, found
        results = Counter(seen.values())
        said = ", ".join(f"{count} {result}" for result, count in sorted(results.items()))
        self._say(f"doctor deployed went through its {len(seen)} rows (moto starts no task): {said}")
        for finding in found:
            if finding["result"] == "failed":
                self._say(f"  {finding['check']}: {finding['seen']}")

    async def _scales_out(self) -> None:
        """Send more than one worker can serve in time, until a second one has joined."""
        client = openai.AsyncOpenAI(base_url=self._base_url, api_key=self.keys["flood"], max_retries=0)
        question: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 512, "timeout": COMMAND_S}
        asked = [asyncio.create_task(client.completions.create(**question)) for _ in range(FLOOD)]
        try:
            async with asyncio.timeout(READY_S):
                while len(serving := await asyncio.to_thread(self._serving, MODEL)) < 2:
                    await asyncio.sleep(1.0)
        finally:
            failed = [error for each in asked if each.done() and (error := each.exception()) is not None]
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        assert not failed, f"{len(failed)} of {FLOOD} requests failed, the first with {failed[0]!r}"
        self._say(f"a flood of {FLOOD} requests: the sweep set the desired count, and {len(serving)} workers serve")

    def _serving(self, pool: str) -> list[str]:
        workers = self.headgate("top", "--once", "--pool", pool)["workers"]
        return [str(worker["worker"]) for worker in workers if worker["state"] == "serving"]

    def _invoked(self, function: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        reply = self._aws("lambda").invoke(FunctionName=function, Payload=json.dumps(payload).encode())
        answer: dict[str, Any] = json.loads(reply["Payload"].read())
        assert "FunctionError" not in reply, answer
        return answer

    def _pause(self) -> None:
        asyncio.run(asyncio.sleep(1.0))
