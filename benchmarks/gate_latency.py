"""Decisions of the gate in virtual time: `python -m benchmarks.gate_latency [--only TEXT] [--seconds S] [--json]`.

The production code of the gate's processes, shard and DynamoDB store, over a model of DynamoDB and of a network
(benchmarks/gate_model): a read takes 4 ms and a put 5 ms in the mean; with a P99 above that, one request in 50 takes up
to twice the P99 longer; a partition takes 1,000 write units a second, refused puts included; a request costs its
process 1.5 ms of CPU, one after the other. A frame takes 1.5 ms. Three gate processes where there is a leader.

A command is an arrival or an end of a call; its time is from `do` to its outcome. Arrivals are uniformly random. Calls
run for a second, slots are plenty. Up to eight of the processes are workers too, which report each second. Requests
and write units contain everything: reports, polls, mailboxes, the search for a leader.

`slots`: eight workers with 64 slots of one second each and twice as many callers as slots; the part of the slots' time
in which a call runs, of the ideal 512 dispatches a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.fleet import ModelledFleet
from benchmarks.gate_model.load import Load
from dispatcher.policies.percentiles import percentile
from tests.support.world.virtual_time import run

SECONDS = 10.0
WORKERS = 8
GATES = ("gate-1", "gate-2", "gate-3")
SETTLED_S = 2.0
FINISH_S = 60.0
BURST, BURST_S = 100, 0.05
SLOTS, CALLERS_PER_SLOT, SLOTS_WARMUP_S = 64, 2, 5.0
TARGET_ALONE_P99_MS, TARGET_LED_P99_MS = 250.0, 30.0


@dataclass(frozen=True)
class Scenario:
    """`rate`: commands a second; 0: a burst. `slow`: so many processes are ten times slower. `weather`: by name."""

    name: str
    led: bool
    processes: int
    rate: float
    p99_ms: float = 0.0
    tenants: int = 1
    cpu_ms: float = 1.5
    slow: int = 0
    hedged: bool = True
    stripes: int = 1
    partition_units: float = 1_000.0
    """What a partition takes in write units a second."""
    weather: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    leader: bool
    processes: int
    tenants: int
    dynamodb_p99_ms: float
    commands_per_s: float
    done_share: float
    refused: int
    """Calls that ended otherwise than "done": refusals and 503."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    requests_per_command: float
    write_units_per_command: float
    throttled: int
    lost_puts: int


@dataclass(frozen=True)
class Slots:
    name: str
    leader: bool
    processes: int
    dispatches_per_s: float
    ideal_per_s: float
    share: float
    p99_ms: float


def throttle(fleet: ModelledFleet) -> None:
    """Let each partition take only 100 write units a second, for three seconds."""
    loop = asyncio.get_running_loop()
    limit = fleet.table.write_units_per_s
    fleet.table.write_units_per_s = 100.0
    loop.call_later(3.0, lambda: setattr(fleet.table, "write_units_per_s", limit))


def stall(seconds: float) -> Callable[[ModelledFleet], None]:
    """Let no request to the log's partition take effect for a while."""

    def begin(fleet: ModelledFleet) -> None:
        fleet.weather.stalled_until["LOG#"] = fleet.clock.monotonic() + seconds

    return begin


WEATHER: dict[str, Callable[[ModelledFleet], None]] = {
    "throttled to 100 units/s for 3 s": throttle,
    "log stalled for 1 s": stall(1.0),
    "log stalled for 5 s": stall(5.0),
}


def scenarios() -> list[Scenario]:
    alone = [
        Scenario("alone", False, processes, 200.0, p99_ms) for p99_ms in (0, 50, 100) for processes in (1, 4, 20, 100)
    ]
    base = Scenario("alone", False, 20, 200.0, 100.0)
    alone += [
        replace(base, tenants=1000),
        replace(base, name="alone, 5 ms of CPU a request", cpu_ms=5.0),
        replace(base, name="alone, 10 processes 10x slower", processes=100, slow=10),
        replace(base, rate=300.0),
        replace(base, rate=400.0),
        replace(base, rate=500.0),
    ]
    led = [Scenario("leader", True, processes, 200.0, 100.0) for processes in (1, 4, 20, 100)]
    led += [Scenario("leader", True, 20, rate, p99_ms) for rate in (1000.0, 4000.0) for p99_ms in (0, 50, 100)]
    fast = Scenario("leader", True, 20, 4000.0, 100.0)
    led += [
        replace(fast, name="leader, not hedged", hedged=False),
        replace(fast, name="leader, 5 ms of CPU a request", cpu_ms=5.0),
        replace(fast, tenants=1000),
        replace(fast, processes=100),
    ]
    most = replace(fast, name="leader, at its most", tenants=1000)
    led += [replace(most, rate=rate) for rate in (10_000.0, 20_000.0)]
    led += [replace(most, name="leader, 8 stripes", rate=rate, stripes=8) for rate in (4000.0, 20_000.0)]
    narrow = replace(most, rate=20_000.0, partition_units=150.0)
    led += [
        replace(narrow, name="leader, 150 units a partition"),
        replace(narrow, name="leader, 150 units a partition, 8 stripes", stripes=8),
    ]
    bursts = [
        Scenario("burst, alone", False, 4, 0.0, 100.0),
        Scenario("burst, alone", False, 20, 0.0, 100.0),
        Scenario("burst, alone", False, 100, 0.0, 100.0),
        Scenario("burst, leader", True, 20, 0.0, 100.0),
        Scenario("burst, leader", True, 100, 0.0, 100.0),
    ]
    weather = [
        Scenario(f"{kind}, {name}", led, 20, rate, 100.0, weather=name)
        for name in WEATHER
        for kind, led, rate in (("alone", False, 100.0), ("leader", True, 1000.0))
    ]
    return alone + led + bursts + weather


def slot_scenarios() -> list[Scenario]:
    return [
        Scenario("slots, leader", True, 20, 0.0, 0.0),
        Scenario("slots, leader", True, 20, 0.0, 100.0),
        Scenario("slots, alone", False, 20, 0.0, 0.0),
        Scenario("slots, alone", False, 20, 0.0, 100.0),
    ]


async def loaded(scenario: Scenario, slots: int, seed: int) -> tuple[ModelledFleet, Load]:
    """Start the processes and workers, and the gate processes if there is a leader."""
    fleet = ModelledFleet(
        seed, p99_s=scenario.p99_ms / 1e3, cpu_s=scenario.cpu_ms / 1e3, hedged=scenario.hedged, stripes=scenario.stripes
    )
    for name in GATES if scenario.led else ():
        await fleet.gate(name)
    await asyncio.sleep(SETTLED_S)
    load = Load(fleet)
    for number in range(scenario.processes):
        load.add_process(f"p{number}", 10.0 if number >= scenario.processes - scenario.slow else 1.0)
    for process in load.processes[:WORKERS]:
        await load.add_worker(process, slots)
    await asyncio.sleep(SETTLED_S)
    return fleet, load


async def measured(scenario: Scenario, seconds: float, seed: int) -> Row:
    calls = int(scenario.rate / 2 * seconds) if scenario.rate else BURST
    duration_s = seconds if scenario.rate else BURST_S
    fleet, load = await loaded(scenario, max(10, 3 * calls // WORKERS), seed)
    requests, units = fleet.table.counts.total(), fleet.table.write_units.total()
    lost, throttled = fleet.table.refused, fleet.table.throttled
    fleet.table.write_units_per_s = scenario.partition_units
    if scenario.weather:
        asyncio.get_running_loop().call_later(duration_s / 2, WEATHER[scenario.weather], fleet)
    await arrive(fleet, load, scenario, calls, duration_s)
    requests, units = fleet.table.counts.total() - requests, fleet.table.write_units.total() - units
    took_ms = [1e3 * took for _, took in load.measures.commands]
    done = load.measures.results["done"]
    return Row(
        scenario.name,
        scenario.led,
        scenario.processes,
        scenario.tenants,
        scenario.p99_ms,
        scenario.rate,
        done / calls,
        load.measures.results.total() - done,
        percentile(took_ms, 0.5) or 0.0,
        percentile(took_ms, 0.99) or 0.0,
        max(took_ms),
        requests / len(took_ms),
        units / len(took_ms),
        fleet.table.throttled - throttled,
        fleet.table.refused - lost,
    )


async def arrive(fleet: ModelledFleet, load: Load, scenario: Scenario, calls: int, duration_s: float) -> None:
    """Let calls arrive at random times within `duration_s`, and wait until all are over."""
    began = fleet.clock.monotonic()
    for at in sorted(fleet.random.random() * duration_s for _ in range(calls)):
        await asyncio.sleep(max(0.0, began + at - fleet.clock.monotonic()))
        load.arrive(fleet.random.choice(load.processes), fleet.random.randrange(scenario.tenants))
    await load.finish(FINISH_S)


async def dispatched(scenario: Scenario, seconds: float, seed: int) -> Slots:
    """Keep all slots wanted: each caller calls again at once."""
    fleet, load = await loaded(scenario, SLOTS, seed)
    until = fleet.clock.monotonic() + SLOTS_WARMUP_S + seconds

    async def caller(number: int) -> None:
        while fleet.clock.monotonic() < until:
            await load.arrive(load.processes[number % len(load.processes)], number % 20)

    callers = [asyncio.ensure_future(caller(number)) for number in range(CALLERS_PER_SLOT * SLOTS * WORKERS)]
    await asyncio.sleep(SLOTS_WARMUP_S + seconds + SETTLED_S)
    for task in callers:
        task.cancel()
    begin = until - seconds
    busy_s = sum(max(0.0, min(ended, until) - max(began, begin)) for began, ended in load.measures.runs)
    took_ms = [1e3 * took for at, took in load.measures.commands if at >= begin]
    ideal, share = float(SLOTS * WORKERS), busy_s / (SLOTS * WORKERS * seconds)
    return Slots(
        f"{scenario.name}, P99 {scenario.p99_ms:g} ms",
        scenario.led,
        scenario.processes,
        share * ideal,
        ideal,
        share,
        percentile(took_ms, 0.99) or 0.0,
    )


def tables(rows: list[Row], slots: list[Slots]) -> list[Table]:
    decisions = Table(
        title="Decisions: times of a command in ms, per command requests to DynamoDB and write units",
        caption="Targets: alone at 200/s and a DynamoDB P99 of 100 ms, up to 20 processes, P99 at most "
        f"{TARGET_ALONE_P99_MS:g} ms;\na leader at 4,000/s at most {TARGET_LED_P99_MS:g} ms; "
        "below capacity no call that is not done.",
    )
    columns = ("", "processes", "tenants", "DynamoDB P99", "commands/s", "done", "not done", "P50", "P99", "max")
    for column in (*columns, "requests", "units", "throttled", "lost puts"):
        decisions.add_column(column, justify="right" if column else "left")
    for row in rows:
        decisions.add_row(
            row.name, str(row.processes), f"{row.tenants:,}", f"{row.dynamodb_p99_ms:g}",
            f"{row.commands_per_s:,.0f}" if row.commands_per_s else "100 calls", f"{row.done_share:.1%}",
            str(row.refused), f"{row.p50_ms:.0f}", f"{row.p99_ms:.0f}", f"{row.max_ms:.0f}",
            f"{row.requests_per_command:.2f}", f"{row.write_units_per_command:.2f}", str(row.throttled),
            str(row.lost_puts),
        )  # fmt: skip
    conservation = Table(title="Eight workers with 64 slots of 1 s (targets: leader 97 %, alone 85 %)")
    for column in ("", "processes", "dispatches/s", "ideal", "share", "P99 ms"):
        conservation.add_column(column, justify="right" if column else "left")
    for line in slots:
        figures = (f"{line.dispatches_per_s:.0f}", f"{line.ideal_per_s:.0f}", f"{line.share:.1%}", f"{line.p99_ms:.0f}")
        conservation.add_row(line.name, str(line.processes), *figures)
    return [decisions, conservation]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_latency", description=__doc__)
    parser.add_argument("--only", default="", help="run only the scenarios with this text in their names")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of each scenario")
    parser.add_argument("--rate", type=float, help="commands a second of each chosen scenario, instead of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    arguments = parser.parse_args()
    chosen = [scenario for scenario in scenarios() if arguments.only in scenario.name]
    if arguments.rate is not None:
        chosen = list(dict.fromkeys(replace(scenario, rate=arguments.rate) for scenario in chosen))
    rows = [run(measured(scenario, arguments.seconds, arguments.seed)) for scenario in chosen]
    chosen = [scenario for scenario in slot_scenarios() if arguments.only in scenario.name]
    slots = [run(dispatched(scenario, arguments.seconds, arguments.seed)) for scenario in chosen]
    if arguments.json:
        report = {"rows": [asdict(row) for row in rows], "slots": [asdict(line) for line in slots]}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        for table in tables(rows, slots):
            Console(width=180).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
