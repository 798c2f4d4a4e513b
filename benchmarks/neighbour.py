"""A neighbour's requests beside another tenant's requests that the engine answers badly.

    python -m benchmarks.neighbour [--seconds S] [--workers 1,3]

`headgate serve --engine openai` in front of a scripted server (poisoned_server.py). The neighbour sends one request
after the other, which the server answers in 0.2 s. First it is alone. Then, for each kind of bad answer, another
tenant has ATTACKERS connections that send the next bad request at once. The bar of issue 29: the neighbour's P50 stays
below 1.5 times its value alone. `of the server`: how often the server got a bad request, for each that was sent.
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
        alone = await load.play(seconds)
        print(f"\n{workers} worker{'s' * (workers > 1)}", flush=True)
        print(
            f"{'':16} {'neighbour P50':>14} {'of alone':>9} {'max':>8}  {'its answers':14} bad requests, of the server"
        )
        print(f"{'alone':16} {alone.p50_s:>12.3f} s {1:>9.2f} {max(alone.took_s):>6.2f} s  {_counts(alone.neighbour)}")
        for poison in POISONS:
            before = server.seen[poison]
            found = await load.play(seconds, poison)
            ratio, sent = found.p50_s / alone.p50_s, found.poisoner.total()
            is_within &= ratio < BAR
            row = f"{poison:16} {found.p50_s:>12.3f} s {ratio:>9.2f} {max(found.took_s):>6.2f} s"
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
