"""Requests and streams through each gateway in turn, and what they cost.

Every figure comes from turns that alternate between the gateways, so that the machine's noise affects all of them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.http_load import Answer, Caller, Front
from benchmarks.peers import gateways
from benchmarks.peers.gateways import MODEL, START_S, Gateway
from dispatcher.policies.percentiles import percentile

TOKENS = 8
AT_A_TIME = 16
LONG_PROMPTS = 10
STREAMS, SHORT, LONG = 8, 10, 210
"""Streams of so many tokens each: the difference of their CPU times is that of the tokens between."""
WARMUP, ROUNDS = 30, 5
MESSAGES = [{"role": "user", "content": "hello"}]
LONG_MESSAGES, LONG_TEXT = 1000, "hello world. " * 30
"""A chat of 400 KB of JSON, about 100,000 tokens."""
COLUMNS = ("added_p50_ms", "cpu_ms", "busy_cpu_ms", "requests_per_s", "token_cpu_ms", "long_cpu_ms")


@dataclass
class Figures:
    """Of one gateway. Times are in seconds. One item a round, but `one_by_one` has one a request."""

    one_by_one: list[float] = field(default_factory=list)
    request_cpu_s: list[float] = field(default_factory=list)
    busy_cpu_s: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    token_cpu_s: list[float] = field(default_factory=list)
    long_cpu_s: list[float] = field(default_factory=list)


def caller(gateway: Gateway, max_tokens: int, *, stream: bool = False, is_long: bool = False) -> Caller:
    messages = [{"role": "user", "content": LONG_TEXT}] * LONG_MESSAGES if is_long else MESSAGES
    made = Caller.of("tenant", gateway.key, stream=stream, model=MODEL, messages=messages, max_tokens=max_tokens)
    return Caller(made.tenant, made.body, made.key, gateway.headers)


async def warm_up(gateway: Gateway) -> None:
    """Wait until the gateway answers. See whether each token of a stream comes as an event. Send WARMUP requests."""
    async with asyncio.timeout(START_S):
        front = Front(gateway.base_url, "/chat/completions")
        while (await front.call(caller(gateway, 1))).status != 200:  # noqa: ASYNC110 - another process gets ready
            await asyncio.sleep(0.2)
        front.close()
    gateway.streams = await streamed_events(gateway) >= LONG
    await repeat(gateway, caller(gateway, TOKENS), WARMUP, 1)


async def streamed_events(gateway: Gateway) -> int:
    """Return how many events with content a stream of LONG tokens has."""
    made = caller(gateway, LONG, stream=True)
    headers = {"authorization": f"Bearer {made.key}", "content-type": "application/json", **dict(gateway.headers)}
    async with httpx.AsyncClient(trust_env=False, timeout=START_S) as http:
        answer = await http.post(f"{gateway.base_url}/chat/completions", content=made.body, headers=headers)
    return sum('"content":"x"' in line.replace(" ", "") for line in answer.text.splitlines())


async def repeat(gateway: Gateway, request: Caller, count: int, at_a_time: int) -> list[Answer]:
    """Send so many requests, so many at a time. Raises RuntimeError if one fails."""
    front, left, answers = Front(gateway.base_url, "/chat/completions"), [None] * count, []

    async def worker() -> None:
        while left:
            left.pop()
            answers.append(await front.call(request))

    await asyncio.gather(*(worker() for _ in range(at_a_time)))
    front.close()
    if failed := [answer for answer in answers if answer.status != 200]:
        raise RuntimeError(f"{gateway.base_url} answered {failed[0].status} {failed[0].code}")
    return answers


async def turn(gateway: Gateway, figures: Figures, requests: int) -> None:
    request = caller(gateway, TOKENS)
    began_s = gateway.used_s()
    figures.one_by_one += [answer.end_s for answer in await repeat(gateway, request, requests, 1)]
    figures.request_cpu_s.append((gateway.used_s() - began_s) / requests)
    began, began_s = time.perf_counter(), gateway.used_s()
    await repeat(gateway, request, 2 * requests, AT_A_TIME)
    figures.requests_per_s.append(2 * requests / (time.perf_counter() - began))
    figures.busy_cpu_s.append((gateway.used_s() - began_s) / (2 * requests))
    began_s = gateway.used_s()
    await repeat(gateway, caller(gateway, TOKENS, is_long=True), LONG_PROMPTS, 1)
    figures.long_cpu_s.append((gateway.used_s() - began_s) / LONG_PROMPTS)
    if not gateway.streams:
        return
    short_s, long_s = [await streams_cpu_s(gateway, tokens) for tokens in (SHORT, LONG)]
    figures.token_cpu_s.append((long_s - short_s) / STREAMS / (LONG - SHORT))


async def streams_cpu_s(gateway: Gateway, tokens: int) -> float:
    began_s = gateway.used_s()
    await repeat(gateway, caller(gateway, tokens, stream=True), STREAMS, 2)
    return gateway.used_s() - began_s


async def measure(compared: dict[str, Gateway], requests: int) -> dict[str, Any]:
    """Return the figures by gateway: milliseconds, and requests per second. `requests`: of each gateway, in a round."""
    found = {name: Figures() for name in compared}
    for gateway in compared.values():
        await warm_up(gateway)
    for _ in range(ROUNDS):
        for name, gateway in compared.items():
            await turn(gateway, found[name], requests)
    direct_s = percentile(found["direct"].one_by_one, 0.5) or 0.0
    return {name: summary(figures, direct_s) for name, figures in found.items()}


async def run(names: list[str], requests: int) -> dict[str, Any]:
    """Start the gateways, measure them with so many requests in turn, and stop them."""
    async with gateways.running(names) as (found, missing):
        return {"gateways": await measure(found, requests // ROUNDS), "missing": missing}


def summary(figures: Figures, direct_s: float) -> dict[str, float | None]:
    p50_s = percentile(figures.one_by_one, 0.5) or 0.0
    return {
        "p50_ms": 1000 * p50_s,
        "added_p50_ms": 1000 * (p50_s - direct_s),
        "cpu_ms": 1000 * median(figures.request_cpu_s),
        "busy_cpu_ms": 1000 * median(figures.busy_cpu_s),
        "requests_per_s": median(figures.requests_per_s),
        "long_cpu_ms": 1000 * median(figures.long_cpu_s),
        "token_cpu_ms": 1000 * median(figures.token_cpu_s) if figures.token_cpu_s else None,
    }


def show(result: dict[str, Any]) -> None:
    """Print a table, with ratios to the floor."""
    title = f"gateways in front of an instant worker, on a core of their own; requests of {TOKENS} tokens; milliseconds"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("gateway")
    for heading in (
        "added\nP50",
        "CPU per\nrequest",
        f"CPU, {AT_A_TIME}\nat a time",
        "requests\nper s",
        "CPU per\ntoken",
        "CPU, 400 KB\nprompt",
    ):
        table.add_column(heading, justify="right")
    floor = result["gateways"].get("floor")
    for name, figures in result["gateways"].items():
        if name != "direct":
            table.add_row(name, *(_cell(figures[each], floor and floor[each]) for each in COLUMNS))
    Console().print(table)
    for line in result["missing"]:
        Console().print(line)


def _cell(value: float | None, floor: float | None) -> str:
    """Return the value, and how many times the floor's it is."""
    if value is None:
        return "–"
    ratio = f" ({value / floor:.2f}x)" if floor and value != floor else ""
    return f"{value:.2f}{ratio}" if value < 100 else f"{value:.0f}{ratio}"
