"""Kill processes of `headgate serve` under load: `python -m benchmarks.kills [--kills N] [--fronts N] [--json]`.

The reliability bar 4. Real processes on this machine: fronts, gate processes, workers and an executor, with the
modelled engine and the SQLite store. Callers send completions under idempotency keys, as many at a time as twice the
slots; after an error they send the same key again, to any front, until they have an answer. Meanwhile kill -9 ends a
process of the stack, again and again; the stack starts it again. The roles take turns: fronts, the gate process that
leads, one that does not, workers, the executor. Then the books are compared:

failed         keys that ended with `worker_failed`: three attempts were lost. It is the key's answer, and costs nothing
lost           keys without an answer at the end
twice          usage's requests less the number of keys: above 0 a key is charged twice, below 0 not at all
tokens         usage's output tokens, beside the sum over all answers: equal, because a lost attempt is free
stuck          calls that hold a slot or a place after everything was answered

Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.served_stack import LEADER, Stack, served
from headgate.serve.server import STEADY_S

SLOTS, WORKERS = 4, 2
CALLERS = 2 * SLOTS * WORKERS
TOKENS_MIN, TOKENS_MAX = 20, 200
PAUSE_S = 0.5
ANSWER_S, SETTLE_S = 120.0, 60.0
TURNS = ("front", LEADER, "worker", "gate", "executor")
LIVES_S = STEADY_S + 1.0
"""A process serves at least so long before its next kill: else it would be started again later each time."""
PROGRESS_KILLS = 10


@dataclass
class Books:
    answered: dict[str, int] = field(default_factory=dict)
    """Output tokens by key."""
    failed: Counter[str] = field(default_factory=Counter)
    """Keys with an error as their answer, by its code: it is the call's record, and does not change."""
    retries: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Result:
    fronts: int
    kills: dict[str, int]
    keys: int
    answered: int
    failed: dict[str, int]
    retries: dict[str, int]
    lost: int
    charged_requests: int
    charged_tokens: int
    answered_tokens: int
    stuck: int
    seconds: float

    @property
    def twice(self) -> int:
        return self.charged_requests - self.keys

    @property
    def is_held(self) -> bool:
        return not (self.lost or self.twice or self.stuck) and self.charged_tokens == self.answered_tokens


async def call(http: httpx.AsyncClient, stack: Stack, books: Books, random: Random, key: str) -> None:
    """Send one key until it has an answer, or the time is over."""
    tokens = random.randint(TOKENS_MIN, TOKENS_MAX)
    body = {"model": stack.model, "prompt": "once upon", "max_tokens": tokens}
    headers = {"authorization": f"Bearer {next(iter(stack.keys.values()))}", "idempotency-key": key}
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        try:
            answer = await http.post(f"{random.choice(stack.urls)}/completions", json=body, headers=headers)
        except httpx.HTTPError as error:
            books.retries[type(error).__name__] += 1
        else:
            if answer.status_code == httpx.codes.OK:
                books.answered[key] = answer.json()["usage"]["completion_tokens"]
                return
            code = answer.json()["error"]["code"]
            if code == "worker_failed":
                books.failed[code] += 1
                return
            books.retries[code] += 1
        await asyncio.sleep(PAUSE_S)
    progress(f"{key} has no answer after {ANSWER_S:g} s")


async def keep_calling(
    http: httpx.AsyncClient, stack: Stack, books: Books, keys: list[str], stop: asyncio.Event
) -> None:
    random = Random(len(keys))
    while not stop.is_set():
        key = f"key-{len(keys)}"
        keys.append(key)
        await call(http, stack, books, random, key)


async def kill(stack: Stack, books: Books, kills: int, every_s: float, seed: int) -> None:
    """End a process, `kills` times: a random one of the next role that has a process now."""
    random, turns, began = Random(seed), list(TURNS), time.monotonic()
    random.shuffle(turns)
    due_at = began
    while (count := books.killed.total()) < kills:
        due_at += every_s * random.uniform(0.5, 1.5)
        await asyncio.sleep(max(PAUSE_S, due_at - time.monotonic()))
        found = await stack.ready_processes(LIVES_S)
        role = next((role for role in turns if any(role == its for its, _ in found)), None)
        if role is None:
            continue
        turns.remove(role)
        turns.append(role)
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice([pid for its, pid in found if its == role]), signal.SIGKILL)
            books.killed[role] += 1
        if count % PROGRESS_KILLS == 0:
            answers = f"{len(books.answered)} answered, {books.failed.total()} failed, {books.retries.total()} retries"
            progress(f"{time.monotonic() - began:.0f} s: {count + 1} of {kills} kills; {answers}")


def progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


async def measured(kills: int, fronts: int, every_s: float, seed: int) -> Result:
    books, keys, stop, began = Books(), list[str](), asyncio.Event(), time.monotonic()
    progress(f"{fronts} fronts: the stack starts")
    async with (
        served(fronts=fronts, workers=WORKERS, slots=SLOTS) as stack,
        httpx.AsyncClient(timeout=ANSWER_S) as http,
    ):
        callers = [asyncio.create_task(keep_calling(http, stack, books, keys, stop)) for _ in range(CALLERS)]
        await kill(stack, books, kills, every_s, seed)
        await asyncio.sleep(every_s)
        stop.set()
        await asyncio.gather(*callers)
        progress(f"{len(keys)} keys are over; the books are read")
        stuck, used = await settled(stack, len(keys))
    return Result(
        fronts,
        dict(books.killed),
        len(keys),
        len(books.answered),
        dict(books.failed),
        dict(books.retries),
        len(keys) - len(books.answered) - books.failed.total(),
        sum(row["requests"] for row in used),
        sum(row["output_tokens"] for row in used),
        sum(books.answered.values()),
        stuck,
        time.monotonic() - began,
    )


async def settled(stack: Stack, keys: int) -> tuple[int, list[dict[str, Any]]]:
    """Wait until nothing waits or runs and all is charged. Return what still does, and the rows of usage."""
    until = time.monotonic() + SETTLE_S
    while True:
        try:
            top, used = await stack.read("top", "--once"), (await stack.read("usage"))["usage"]
        except subprocess.CalledProcessError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(1.0)
            continue
        stuck = sum(row["waiting"] + row["running"] for row in top["tenants"])
        if time.monotonic() > until or (not stuck and sum(row["requests"] for row in used) >= keys):
            return stuck, used
        await asyncio.sleep(1.0)


def table_of(results: list[Result]) -> Table:
    table = Table(title="kill -9 under load (bar 4)")
    for column in (
        "fronts",
        "kills",
        "keys",
        "answered",
        "failed",
        "retries",
        "lost",
        "twice",
        "tokens",
        "stuck",
        "bar 4",
    ):
        table.add_column(column, justify="right")
    for each in results:
        kills = ", ".join(f"{count} {role}" for role, count in sorted(each.kills.items()))
        tokens = f"{each.charged_tokens:,} of {each.answered_tokens:,}"
        counts = (sum(each.failed.values()), sum(each.retries.values()), each.lost, each.twice)
        held = "held" if each.is_held else "broken"
        table.add_row(
            str(each.fronts),
            kills,
            str(each.keys),
            str(each.answered),
            *map(str, counts),
            tokens,
            str(each.stuck),
            held,
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--every", type=float, default=1.2, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    runs = [
        asyncio.run(measured(arguments.kills, fronts, arguments.every, arguments.seed)) for fronts in arguments.fronts
    ]
    if arguments.json:
        sys.stdout.write(json.dumps({"runs": [asdict(each) for each in runs]}) + "\n")
    else:
        Console(width=140).print(table_of(runs))
    return 0 if all(each.is_held for each in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
