"""Streams that run while a part of the stack is replaced. Each must end whole: with its last token and no error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import openai

from dispatcher.model.errors import ConfigurationError
from headgate.doctor.deployed.stack import Traffic

STREAMS = 4
"""The number of streams at once. When a stream ends, the next stream begins."""
TOKENS = 512
STREAM_S = 900.0
OWN_CONNECTION = {"Connection": "close"}
"""The header that gives each stream its own connection. A front may close a kept connection at the moment at which the
next request is sent."""


@dataclass(slots=True)
class Streamed:
    """What was seen. `whole`: the streams that ended as they should. `broken`: what ended the others."""

    whole: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


def traffic_to(base_url: str, key: str, model: str | None, run: str) -> Traffic:
    """Return the traffic to a model, by default the first one that the key may use. Raises ConfigurationError."""
    if not key:
        raise ConfigurationError("--disturb sends requests: give a tenant's key with --key, or HEADGATE_API_KEY")
    try:
        models = [each.id for each in openai.OpenAI(base_url=base_url, api_key=key, max_retries=0).models.list()]
    except openai.APIError as error:
        raise ConfigurationError(f"{base_url} answers no request with this key: {error.message}") from None
    if not models or (model is not None and model not in models):
        raise ConfigurationError(f"the key may not use the model {model or 'of any pool'}; it may use {models}")
    return Traffic(base_url, key, model or models[0], run)


def stream_during(change: Callable[[], None], traffic: Traffic) -> Streamed:
    """Stream answers until `change`, which may block, has returned and the last ones have ended.

    `change` begins when the first stream has a token. Raises what `change` raises, and ConnectionError if no stream
    begins.
    """
    return asyncio.run(_during(change, traffic))


async def _during(change: Callable[[], None], traffic: Traffic) -> Streamed:
    seen, began, over = Streamed(), asyncio.Event(), asyncio.Event()
    async with openai.AsyncOpenAI(
        base_url=traffic.base_url, api_key=traffic.key, max_retries=0, default_headers=OWN_CONNECTION
    ) as client:
        streams = [asyncio.create_task(_repeat(client, traffic.model, seen, began, over)) for _ in range(STREAMS)]
        first, started = asyncio.create_task(began.wait()), time.monotonic()
        try:
            await asyncio.wait({first, *streams}, return_when=asyncio.FIRST_COMPLETED)
            if not began.is_set():
                raise ConnectionError(seen.broken[0])
            await asyncio.to_thread(change)
        finally:
            over.set()
            first.cancel()
            await asyncio.gather(*streams)
        seen.seconds = time.monotonic() - started
    return seen


async def _repeat(
    client: openai.AsyncOpenAI, model: str, seen: Streamed, began: asyncio.Event, over: asyncio.Event
) -> None:
    """Stream one answer after another until `over`, or until one is broken."""
    while not over.is_set():
        try:
            is_whole = await _stream(client, model, began)
        except openai.APIError as error:
            seen.broken.append(f"{type(error).__name__}: {error.message}"[:200])
            return
        if not is_whole:
            seen.broken.append("a stream ended without its last chunk")
            return
        seen.whole += 1


async def _stream(client: openai.AsyncOpenAI, model: str, began: asyncio.Event) -> bool:
    """Return whether the stream had a reason for its end."""
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell a long story."}], max_tokens=TOKENS, stream=True,
        timeout=STREAM_S,
    )  # fmt: skip
    reasons = []
    async for chunk in answer:
        began.set()
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    return bool(reasons)
