"""Overload and an abuser through the HTTP front: `python -m benchmarks.front_overload [--bar 6|7] [--seconds S]`.

The reliability bars 6 and 7 with real processes on this machine: `headgate serve` with the modelled engine and SQLite,
two workers with four slots, calls of 16 tokens, of which 25 a second fit. This process sends the load.

bar 6  Capacity is what a closed loop of twice the slots gets. Then four tenants, one of them with half of the calls,
       offer ten times that, at least 200 calls a second; each queue takes 20 items. Then half of the capacity is
       offered, and the waits are those of the calls that arrive one TTL (10 s) after the overload.
bar 7  A tenant has half of the capacity guaranteed and calls at 70 % of that: alone on a stack with one of the two
       workers, then on both beside a tenant that has a tenth guaranteed and calls at 100 times that. Its answers are
       streams; a wait lasts until the stream begins, so it contains the first token.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.http_load import Answer, Caller, Load
from benchmarks.served_stack import Stack, served
from dispatcher.policies.percentiles import percentile

WORKERS, SLOTS, TOKENS = 2, 4, 16
PROMPT = "once upon a time"
UNITS = 4 + 2 * TOKENS
"""Service units of a call: four tokens of prompt."""
OVERLOAD, OFFERED_MIN_PER_S = 10.0, 200.0
ABUSE, QUIET_SHARE, ABUSER_SHARE, QUIET_LOAD = 100.0, 0.5, 0.1, 0.7
QUEUE_MAX, TTL_S = 20, 10.0
SECONDS, CAPACITY_S, WARMUP_S, AFTER_S = 600.0, 20.0, 5.0, 20.0
GOODPUT_MIN, REFUSAL_MS_MAX, WAIT_RATIO_MAX = 0.95, 50.0, 1.2


@dataclass(frozen=True)
class Overload:
    fronts: int
    seconds: float
    capacity_per_s: float
    offered_per_s: float
    goodput: float
    """Of the capacity."""
    longest_queue: int
    refused: int
    refusal_p50_ms: float
    refusal_p99_ms: float
    without_retry_after: int
    others: dict[str, int]
    """Answers that are neither whole nor refusals, by their code."""
    wait_before_s: float
    wait_after_s: float
    """P99 until the answer is whole: at half of the capacity, before and one TTL after the overload."""
    cpu: dict[str, float]
    """Cores in use during the overload, by role; `load` is this process."""

    @property
    def is_held(self) -> bool:
        answered = self.refusal_p99_ms <= REFUSAL_MS_MAX and not self.without_retry_after and not self.others
        return self.goodput >= GOODPUT_MIN and answered and self.longest_queue <= QUEUE_MAX


@dataclass(frozen=True)
class Abuse:
    fronts: int
    seconds: float
    capacity_per_s: float
    abuser_per_s: float
    calls: int
    alone_p99_s: float
    beside_p99_s: float
    others: dict[str, int]
    """Answers of the well-behaved tenant that are not whole, by their code."""
    cpu: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.beside_p99_s / self.alone_p99_s

    @property
    def is_held(self) -> bool:
        return self.ratio <= WAIT_RATIO_MAX and not self.others


class Cpu:
    """The CPU time of the stack's processes, by role."""

    def __init__(self, stack: Stack) -> None:
        self._processes = [("load", psutil.Process())]
        self._processes += [(role, psutil.Process(pid)) for role, pid in stack.processes()]
        self._began, self._before = time.monotonic(), self._seconds()

    def cores(self) -> dict[str, float]:
        """Return the cores in use since the start, by role."""
        after, took_s = self._seconds(), time.monotonic() - self._began
        return {role: round((after[role] - before) / took_s, 3) for role, before in self._before.items()}

    def _seconds(self) -> dict[str, float]:
        seconds = dict.fromkeys((role for role, _ in self._processes), 0.0)
        for role, process in self._processes:
            times = process.cpu_times()
            seconds[role] += times.user + times.system
        return seconds


def tenants_file(rates: dict[str, float]) -> str:
    """Return the text of a file of tenants with these guarantees, in service units a second."""
    lines = [
        f"  {name}: {{rate_per_s: {rate:.1f}, burst: {5 * rate:.1f}, queue_max: {QUEUE_MAX}}}"
        for name, rate in rates.items()
    ]
    return "\n".join(["tenants:", *lines, ""])


def callers_of(stack: Stack, tenants: Sequence[str], *, stream: bool = False) -> list[Caller]:
    fields = {"model": stack.model, "prompt": PROMPT, "max_tokens": TOKENS}
    return [Caller.of(name, stack.keys[name], stream=stream, **fields) for name in tenants]


async def capacity_of(stack: Stack, callers: Sequence[Caller], seed: int, seconds: float) -> float:
    """Return the calls a second that a closed loop gets."""
    load, began = Load(stack.urls, seed), time.monotonic() + WARMUP_S
    await load.keep_busy(callers, 2 * WORKERS * SLOTS, WARMUP_S + seconds)
    whole = [
        each for each in load.answers if each.status == 200 and began <= each.sent_at + each.end_s < began + seconds
    ]
    return len(whole) / seconds


async def overloaded(fronts: int, seconds: float, seed: int) -> Overload:
    text = tenants_file(dict.fromkeys(("a", "b", "c", "d"), 0.0))
    async with served(fronts=fronts, workers=WORKERS, slots=SLOTS, tenants=text) as stack:
        callers = callers_of(stack, "abcd")
        capacity = await capacity_of(stack, callers, seed, CAPACITY_S)
        offered = max(OFFERED_MIN_PER_S, OVERLOAD * capacity)
        load = Load(stack.urls, seed)
        await load.arrive(callers, capacity / 2, AFTER_S)
        await load.finish()
        before, load.answers = load.answers, []
        cpu, began = Cpu(stack), time.monotonic() + WARMUP_S
        await load.arrive([callers[0], callers[0], *callers], offered, WARMUP_S + seconds)
        ended, cores = time.monotonic(), cpu.cores()
        await load.arrive(callers, capacity / 2, TTL_S + AFTER_S)
        await load.finish()
    return _overload(fronts, seconds, capacity, offered, before, load.answers, (began, ended), cores)


def _overload(
    fronts: int,
    seconds: float,
    capacity: float,
    offered: float,
    before: list[Answer],
    answers: list[Answer],
    measured: tuple[float, float],
    cores: dict[str, float],
) -> Overload:
    began, ended = measured
    whole = [each for each in answers if each.status == 200]
    refusals = [each for each in answers if each.is_refusal and began <= each.sent_at < ended]
    took_ms = [1e3 * each.end_s for each in refusals]
    return Overload(
        fronts,
        seconds,
        capacity,
        offered,
        sum(began <= each.sent_at + each.end_s < ended for each in whole) / (capacity * (ended - began)),
        max((each.position for each in whole), default=0),
        len(refusals),
        percentile(took_ms, 0.5) or 0.0,
        percentile(took_ms, 0.99) or 0.0,
        sum(not each.retry_after for each in refusals),
        dict(Counter(each.code for each in answers if each.status not in (200, 429))),
        percentile([each.end_s for each in before], 0.99) or 0.0,
        percentile([each.end_s for each in answers if each.sent_at >= ended + TTL_S], 0.99) or 0.0,
        cores,
    )


async def abused(fronts: int, seconds: float, seed: int) -> Abuse:
    capacity = await _whole_capacity(fronts, seed)
    rates = {"quiet": QUIET_SHARE * capacity * UNITS, "abuser": ABUSER_SHARE * capacity * UNITS}
    alone, _ = await _quiet(fronts, WORKERS // 2, rates, capacity, seconds, seed, abuser_per_s=0.0)
    abuser_per_s = ABUSE * ABUSER_SHARE * capacity
    beside, cores = await _quiet(fronts, WORKERS, rates, capacity, seconds, seed, abuser_per_s=abuser_per_s)
    p99 = [
        percentile([each.head_s for each in answers if each.status == 200], 0.99) or 0.0 for answers in (alone, beside)
    ]
    others = dict(Counter(each.code for each in beside if each.status != 200))
    return Abuse(fronts, seconds, capacity, abuser_per_s, len(beside), p99[0], p99[1], others, cores)


async def _whole_capacity(fronts: int, seed: int) -> float:
    async with served(fronts=fronts, workers=WORKERS, slots=SLOTS, tenants=tenants_file({"a": 0.0})) as stack:
        return await capacity_of(stack, callers_of(stack, "a"), seed, CAPACITY_S)


async def _quiet(
    fronts: int,
    workers: int,
    rates: dict[str, float],
    capacity: float,
    seconds: float,
    seed: int,
    *,
    abuser_per_s: float,
) -> tuple[list[Answer], dict[str, float]]:
    """Return the answers to the well-behaved tenant, and the cores in use."""
    async with served(fronts=fronts, workers=workers, slots=SLOTS, tenants=tenants_file(rates)) as stack:
        quiet, load, cpu = callers_of(stack, ["quiet"], stream=True), Load(stack.urls, seed), Cpu(stack)
        began = time.monotonic() + WARMUP_S
        works = [load.arrive(quiet, QUIET_LOAD * QUIET_SHARE * capacity, WARMUP_S + seconds)]
        if abuser_per_s:
            works.append(load.arrive(callers_of(stack, ["abuser"]), abuser_per_s, WARMUP_S + seconds))
        await asyncio.gather(*works)
        cores = cpu.cores()
        await load.finish()
    return [each for each in load.answers if each.tenant == "quiet" and each.sent_at >= began], cores


def overloads_table(rows: list[Overload]) -> Table:
    table = Table(title="Bar 6 through the HTTP front: ten times the capacity")
    columns = (
        "fronts",
        "seconds",
        "capacity/s",
        "offered/s",
        "goodput",
        "longest queue",
        "refused",
        "P50 of a refusal, ms",
    )
    after = ("P99, ms", "without Retry-After", "other ends", "P99 before, s", "P99 after one TTL, s", "bar 6")
    for column in (*columns, *after):
        table.add_column(column, justify="right")
    for row in rows:
        queue = f"{row.longest_queue} of {QUEUE_MAX}"
        rates = (f"{row.seconds:g}", f"{row.capacity_per_s:.1f}", f"{row.offered_per_s:.0f}", f"{row.goodput:.1%}")
        refusals = (f"{row.refused:,}", f"{row.refusal_p50_ms:.1f}", f"{row.refusal_p99_ms:.1f}")
        counts = (str(row.without_retry_after), str(sum(row.others.values())))
        waits = (f"{row.wait_before_s:.2f}", f"{row.wait_after_s:.2f}")
        table.add_row(str(row.fronts), *rates, queue, *refusals, *counts, *waits, _held(is_held=row.is_held))
    return table


def abuses_table(rows: list[Abuse]) -> Table:
    table = Table(title="Bar 7 through the HTTP front: until the stream begins, beside one at 100 times its share")
    columns = ("fronts", "seconds", "capacity/s", "abuser/s", "calls", "P99 alone, s", "P99 beside, s", "ratio")
    for column in (*columns, "not whole", "bar 7"):
        table.add_column(column, justify="right")
    for row in rows:
        rates = (f"{row.seconds:g}", f"{row.capacity_per_s:.1f}", f"{row.abuser_per_s:.0f}", f"{row.calls:,}")
        waits = (f"{row.alone_p99_s:.3f}", f"{row.beside_p99_s:.3f}", f"{row.ratio:.2f}")
        table.add_row(str(row.fronts), *rates, *waits, str(sum(row.others.values())), _held(is_held=row.is_held))
    return table


def _held(*, is_held: bool) -> str:
    return "held" if is_held else "broken"


def show(overloads: list[Overload], abuses: list[Abuse]) -> None:
    console = Console(width=160)
    if overloads:
        console.print(overloads_table(overloads), f"At least {GOODPUT_MIN:.0%}; at most {REFUSAL_MS_MAX:g} ms.")
    if abuses:
        console.print(abuses_table(abuses), f"Ratio at most {WAIT_RATIO_MAX:g}.")
    rows: list[Overload | Abuse] = [*overloads, *abuses]
    for row in rows:
        console.print(f"{type(row).__name__}, {row.fronts} front(s): cores {row.cpu}; other ends {row.others}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of overload and of abuse")
    parser.add_argument("--bar", type=int, choices=(6, 7), help="only this bar")
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    chosen = parser.parse_args()
    gc.freeze()
    gc.disable()  # a collection of all answers would be measured as a slow refusal
    overloads = [
        asyncio.run(overloaded(each, chosen.seconds, chosen.seed)) for each in chosen.fronts if chosen.bar != 7
    ]
    abuses = [asyncio.run(abused(each, chosen.seconds, chosen.seed)) for each in chosen.fronts if chosen.bar != 6]
    if chosen.json:
        report = {"overload": list(map(asdict, overloads)), "abuse": list(map(asdict, abuses))}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        show(overloads, abuses)
    return 0 if all(each.is_held for each in overloads) and all(each.is_held for each in abuses) else 1


if __name__ == "__main__":
    sys.exit(main())
