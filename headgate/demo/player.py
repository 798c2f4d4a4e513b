"""Plays a workload against a running stack with unmodified clients: the openai SDK, streaming, and boto3.

Open loop: a request is sent at its time, however many are still running. Most requests go over HTTP. Every n-th request
goes through `lambda.invoke`, which does not stream: it gives a latency, and no time to the first token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.config import Config as BotoConfig
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient

from headgate.demo.measure import Sample
from headgate.local.seed import session
from headgate.workloads.arrivals import Arrival

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

_REQUEST_TIMEOUT_S = 280.0
_LAMBDA_THREADS = 2
"""Lambda calls of one tenant at a time. Each holds a thread and a Lambda environment, so each tenant has its own."""
_UNFINISHED = ("queued", "running")
RESULT_POLL_S = 1.0
_WORDS = ("water", "gate", "field", "share", "canal", "river", "flow", "turn", "due", "weir", "sluice", "bank")


@dataclass(slots=True)
class Player:
    """One play. `samples` gets a sample for each request that is sent; the answer fills it in."""

    base_url: str
    aws_url: str | None
    """The AWS endpoint; None if no request goes through lambda.invoke."""
    keys: Mapping[str, str]
    model: str
    bytes_per_token: float
    lambda_every: Mapping[str, int]
    """Maps a tenant to n: every n-th request of the tenant goes through lambda.invoke; 0 for none."""
    samples: list[Sample] = field(default_factory=list)
    _start_s: float = 0.0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s if self._start_s else 0.0

    async def play(self, arrivals: Sequence[Arrival], on_sent: Callable[[], None] = lambda: None) -> list[Sample]:
        """Send every request at its time and wait for all answers. A cancel drops the requests that are running."""
        threads = {name: ThreadPoolExecutor(_LAMBDA_THREADS, f"headgate-demo-{name}") for name in self.keys}
        clients = {name: self._openai(key) for name, key in self.keys.items()}
        lambda_client = self._lambda() if self.aws_url else None
        self._start_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for number, arrival in enumerate(arrivals):
                    await asyncio.sleep(arrival.arrival_s - self.elapsed_s())
                    sample = Sample(arrival.tenant, self._face(arrival.tenant), self.elapsed_s())
                    self.samples.append(sample)
                    prompt = self.prompt(arrival.input_tokens, number)
                    if lambda_client is None or sample.face == "http":
                        group.create_task(self._over_http(clients[arrival.tenant], sample, prompt, arrival))
                    else:
                        group.create_task(
                            self._over_lambda(threads[arrival.tenant], lambda_client, sample, prompt, arrival)
                        )
                    on_sent()
        finally:
            for pool in threads.values():
                pool.shutdown(wait=False, cancel_futures=True)
            await asyncio.gather(*(client.close() for client in clients.values()), return_exceptions=True)
        return self.samples

    def prompt(self, input_tokens: int, number: int) -> str:
        """Return a text of about that many tokens, different for each request."""
        size = max(1, round(input_tokens * self.bytes_per_token))
        words = (_WORDS[(number * 7 + i * i) % len(_WORDS)] for i in range(size))
        return f"{number} {' '.join(words)}"[:size]

    def _face(self, tenant: str) -> str:
        every = self.lambda_every.get(tenant, 0) if self.aws_url else 0
        sent = sum(sample.tenant == tenant for sample in self.samples)
        return "lambda" if every and sent % every == every - 1 else "http"

    async def _over_http(self, client: AsyncOpenAI, sample: Sample, prompt: str, arrival: Arrival) -> None:
        try:
            stream = await client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=arrival.output_tokens,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    sample.token_times_s.append(self.elapsed_s())
                    sample.first_token_s = sample.first_token_s or self.elapsed_s()
                if chunk.usage is not None:
                    sample.input_tokens = chunk.usage.prompt_tokens
                    sample.output_tokens = chunk.usage.completion_tokens
        except APIError as error:
            sample.error = str(error.code or type(error).__name__)
        sample.end_s = self.elapsed_s()

    async def _over_lambda(
        self, threads: ThreadPoolExecutor, client: LambdaClient, sample: Sample, prompt: str, arrival: Arrival
    ) -> None:
        payload = {
            "api_key": self.keys[arrival.tenant],
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": arrival.output_tokens,
        }
        answer = await asyncio.get_running_loop().run_in_executor(threads, _invoke, client, payload)
        sample.end_s = self.elapsed_s()
        if "usage" in answer:
            sample.input_tokens = answer["usage"]["prompt_tokens"]
            sample.output_tokens = answer["usage"]["completion_tokens"]
        else:
            sample.error = str(answer.get("error", {}).get("code") or answer.get("errorType") or "unknown")

    def _openai(self, key: str) -> AsyncOpenAI:
        http = DefaultAsyncHttpxClient(trust_env=self.aws_url is None)  # the local stack needs no proxy
        return AsyncOpenAI(
            base_url=self.base_url, api_key=key, max_retries=0, timeout=_REQUEST_TIMEOUT_S, http_client=http
        )

    def _lambda(self) -> LambdaClient:
        config = BotoConfig(
            connect_timeout=5,
            read_timeout=_REQUEST_TIMEOUT_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=2 * _LAMBDA_THREADS,
        )
        return session().client("lambda", endpoint_url=self.aws_url, config=config)


def _invoke(
    client: LambdaClient, payload: dict[str, Any], pause: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Return the answer or the error. If many of the tenant's calls wait, invoke returns an id: ask for its result."""
    try:
        answer = _call(client, "headgate-invoke", payload)
        while answer.get("status") in _UNFINISHED:
            pause(RESULT_POLL_S)
            answer = _call(client, "headgate-result", {"api_key": payload["api_key"], "id": answer["id"]})
    except client.exceptions.TooManyRequestsException:
        return {"errorType": "TooManyRequestsException"}
    response: dict[str, Any] = answer.get("response", answer)
    return response


def _call(client: LambdaClient, function: str, payload: dict[str, Any]) -> dict[str, Any]:
    reply = client.invoke(FunctionName=function, Payload=json.dumps(payload).encode())
    answer: dict[str, Any] = json.loads(reply["Payload"].read())
    return answer
