"""What callers get while the table is away, in virtual time: `python -m benchmarks.outage [--gates N] [--json]`.

A front serves a call of each kind five times a second, for twenty seconds. At their start the table goes away, in one
of four ways (tests/support/world/outage_world.py), and after them it is back. Without gate processes the front decides
alone, with its own replica; otherwise it asks the leader, with no heir (1) or two (3). For each kind: the statuses of
the calls that began in the outage, and the longest time until one of them was answered.

After the outage nothing may be lost or doubled. "ran later": executions that the workers began after it for calls that
had got a 503. The last table: a leader is killed, and the table is well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from math import inf

from rich.console import Console
from rich.table import Table

from functions.observability import logger
from tests.support.world.outage_world import FAULTS, Fault, OutageWorld
from tests.support.world.virtual_time import run

OUTAGE_S, EVERY_S = 20.0, 0.2
ANSWERED_S = 60.0
"""The wait for the last answers, still in the outage."""
BACK_S = 30.0
TRIES_MAX = 300
TARGET_S = 2.0
FAILOVER_S = 5.0


@dataclass(frozen=True)
class Kind:
    gates: int
    fault: str
    kind: str
    calls: int
    statuses: str
    longest_s: float
    without_retry_after: int


@dataclass(frozen=True)
class After:
    gates: int
    fault: str
    refused: int
    ran_later: int
    doubled: int
    unanswered: int
    """Accepted before the outage, and not answered BACK_S after it."""
    served_s: float
    """The time from the end of the outage to the first answer with 200."""


async def outage(gates: int, fault: Fault) -> tuple[list[Kind], After]:
    world = OutageWorld(gates)
    await world.start()
    clock = world.world.clock
    running = await world.arrivals(0.4, 0.1)
    began = clock.monotonic()
    world.break_table(fault)
    calls = await world.arrivals(OUTAGE_S, EVERY_S)
    await asyncio.sleep(ANSWERED_S)
    got, place = world.began(OUTAGE_S + ANSWERED_S, began), len(world.workers.orders)
    refused = sum(each.status >= 400 for each in got)
    world.mend_table()
    mended = clock.monotonic()
    for _ in range(TRIES_MAX):
        if (await world.call("chat, whole")).status == 200:
            break
        await asyncio.sleep(0.1)
    served_s = clock.monotonic() - mended
    await asyncio.sleep(BACK_S)
    ran = world.begun_since(place)
    await world.close()
    kinds = []
    for kind in world.kinds():
        own = [each for each in got if each.kind == kind]
        statuses = sorted({str(each.status) for each in own})
        bare = sum(each.status >= 400 and not each.retry_after for each in own)
        longest_s = max((each.seconds for each in own), default=inf)
        kinds.append(Kind(gates, fault, kind, len(own), ", ".join(statuses) or "none", longest_s, bare))
    late = sum(not order.terms.durable for order in ran) - 1
    unanswered = sum(not task.done() for task in [*running, *calls])
    return kinds, After(gates, fault, refused, late, len(world.doubled()), unanswered, served_s)


async def failover() -> list[Kind]:
    world = OutageWorld(3)
    await world.start()
    began = world.world.clock.monotonic()
    world.world.host(world.world.leaders[0]).kill()
    await asyncio.gather(*await world.arrivals(FAILOVER_S, 0.05))
    got = world.began(FAILOVER_S, began)
    await world.close()
    statuses = ", ".join(sorted({str(each.status) for each in got}))
    return [Kind(3, "leader killed", "all", len(got), statuses, max(each.seconds for each in got), 0)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    logger.setLevel("CRITICAL")
    ran = [run(outage(gates, fault)) for gates in chosen.gates for fault in FAULTS]
    kinds = [kind for each, _ in ran for kind in each]
    afters, killed = [after for _, after in ran], run(failover())
    if chosen.json:
        json.dump([*map(asdict, kinds), *map(asdict, afters), *map(asdict, killed)], sys.stdout)
        return 0
    for gates in chosen.gates:
        _print_kinds(gates, [kind for kind in kinds if kind.gates == gates])
    _print_afters(afters)
    for each in killed:
        Console().print(f"{each.fault}: {each.calls} calls, status {each.statuses}, at most {each.longest_s:.2f} s")
    sound = all(each.longest_s <= TARGET_S and not each.without_retry_after for each in kinds)
    return 0 if sound and not any(each.ran_later or each.doubled or each.unanswered for each in afters) else 1


def _print_kinds(gates: int, kinds: list[Kind]) -> None:
    table = Table(
        title=f"{gates} gate processes: status, and the longest time until the answer, s", title_justify="left"
    )
    table.add_column("call")
    for fault in FAULTS:
        table.add_column(fault, justify="right")
    for name in dict.fromkeys(kind.kind for kind in kinds):
        found = {each.fault: f"{each.statuses}  {each.longest_s:.2f}" for each in kinds if each.kind == name}
        table.add_row(name, *(found[fault] for fault in FAULTS))
    Console(width=120).print(table)


def _print_afters(afters: list[After]) -> None:
    names = ("gates", "fault", "refused", "ran later", "doubled", "unanswered", "200 again after, s")
    table = Table(*names, title="When the table is back", title_justify="left")
    for each in afters:
        counts = each.refused, each.ran_later, each.doubled, each.unanswered
        table.add_row(str(each.gates), each.fault, *map(str, counts), f"{each.served_s:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
