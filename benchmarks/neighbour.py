"""A neighbour's requests beside another tenant's requests that the engine answers badly.

    python -m benchmarks.neighbour [--seconds S] [--workers 1,3]

`headgate serve --engine openai` in front of a scripted server (poisoned_server.py). The neighbour sends one request
after the other, which the server answers in 0.2 s. For each kind of bad answer it is first alone; then another tenant
has ATTACKERS connections that send the next bad request at once. The bar of issue 29: the neighbour's P50 stays below
1.5 times its value alone, which is measured just before, because the load of a host changes. `of the server`: how
often the server got a bad request, for each that was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from benchmarks.poisoned_server import ANSWER_S, POISONS, PoisonedServer
from benchmarks.served_stack import Stack, served

ATTACKERS = 8
SLOTS = 16
PAUSE_S = 0.05
REST_S = 10.0
"""Between two rows: what is remembered of failures is forgotten."""
BAR = 1.5
TENANTS = "tenants: {neighbour: {}, poisoner: {}}\n"


@dataclass(slots=True)
class Found:
    """What the neighbour and the poisoner got."""

    took_s: list[float] = field(default_factory=list)
    neighbour: Counter[int] = field(default_factory=Counter)
    poisoner: Counter[int] = field(default_factory=Counter)

    @property
    def p50_s(self) -> float:
        return statistics.median(self.took_s)


class Load:
    def __init__(self, stack: Stack, client: httpx.AsyncClient) -> None:
        self._stack = stack
        self._client = client

    async def play(self, seconds: float, poison: str = "") -> Found:
        found, until_s = Found(), time.monotonic() + seconds
        attackers = [
            asyncio.create_task(self._attack(found, poison, until_s)) for _ in range(ATTACKERS if poison else 0)
        ]
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            found.neighbour[await self._send("neighbour", "plain")] += 1
            found.took_s.append(time.monotonic() - began_s)
            await asyncio.sleep(PAUSE_S)
        await asyncio.gather(*attackers)
        return found

    async def _attack(self, found: Found, poison: str, until_s: float) -> None:
        while time.monotonic() < until_s:
            found.poisoner[await self._send("poisoner", poison)] += 1

    async def _send(self, tenant: str, name: str) -> int:
        body = {"model": self._stack.model, "messages": [{"role": "user", "content": f"S:{name}"}], "max_tokens": 64}
        headers = {"authorization": f"Bearer {self._stack.keys[tenant]}"}
        url = f"{self._stack.urls[0]}/chat/completions"
        return (await self._client.post(url, json=body, headers=headers, timeout=60.0)).status_code


async def measure(workers: int, seconds: float) -> bool:
    """Print the table of a fleet. Return whether every row is within the bar."""
    server, is_within = PoisonedServer(), True
    async with (
        server.serving(),
        served(
            fronts=1, workers=workers, slots=SLOTS, tenants=TENANTS, engine=("openai", "--url", server.url)
        ) as stack,
        httpx.AsyncClient() as client,
    ):
        load = Load(stack, client)
        await load.play(2.0)
        print(f"\n{workers} worker{'s' * (workers > 1)}", flush=True)
        print(f"{'':16} {'alone':>8} {'beside':>8} {'ratio':>6} {'max':>8}  {'its answers':14} bad ones, of the server")
        for poison in POISONS:
            await asyncio.sleep(REST_S)
            alone, before = await load.play(seconds), server.seen[poison]
            found = await load.play(seconds, poison)
            ratio, sent = found.p50_s / alone.p50_s, found.poisoner.total()
            is_within &= ratio < BAR
            row = f"{poison:16} {alone.p50_s:>6.3f} s {found.p50_s:>6.3f} s {ratio:>6.2f} {max(found.took_s):>6.2f} s"
            each = (server.seen[poison] - before) / sent
            print(f"{row}  {_counts(found.neighbour):14} {_counts(found.poisoner)}, {each:.2f}", flush=True)
    return is_within


def _counts(statuses: Counter[int]) -> str:
    return " ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbour", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each row")
    parser.add_argument("--workers", default="1,3", help="fleets to measure, by their workers")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores; {ATTACKERS} bad requests always open; an answer of the server takes {ANSWER_S} s")
    within = [asyncio.run(measure(int(workers), options.seconds)) for workers in options.workers.split(",")]
    print(f"\nevery P50 below {BAR} times its value alone: {'yes' if all(within) else 'NO'}")
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
