"""An abuser beside well-behaved tenants: `python -m benchmarks.gate_abuse [--seconds S] [--only order|gate] [--json]`.

The reliability bar 7, in virtual time. Equal tenants share a machine of slots: each has 1/n of it guaranteed (rate, and
a burst of some seconds of it). One of them, without a guarantee, calls at 100 times its share; the others at 50, 70 and
95 % of theirs. 64 / 3 calls a second fit, with any number of slots: more slots mean longer calls, as in an engine whose
batch grows (`--call`: calls of one length, so that more slots mean more calls). A wait lasts from a call's arrival to
its slot. It is compared with two ways to be alone on the share:

rate   a server that gives the guaranteed service units a second to one call after the other. Theory means this one:
       packet fair queueing (Parekh and Gallager, 1993) ends a packet at most one packet's time after the fluid server
       ends it, and the guarantee of the gate is such a rate (policies/clocks.py).
slots  a machine that has 1/n of the slots for the tenant alone. With more than a few slots and little load a slot is
       always free there. Beside another tenant all slots are in use, and nothing is preempted at the gate: the first
       slot comes free with the next end (`next end`), in any order. So this ratio has no bound; the theorem's
       term, at most one call's time, is the column `bound`: 1.2 x alone + the longest call.

order  The shard alone (gate_model/slot_machine.py): several seeds, the ratio's lowest and highest in brackets.
gate   Whole processes (gate_model/fleet.py: a leader, DynamoDB with a P99 of 100 ms), with 1 and 8 fronts. Their waits
       include the time to decide, also alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.load import BURST_S as GATE_BURST_S
from benchmarks.gate_model.load import COST
from benchmarks.gate_model.loaded_gate import started
from benchmarks.gate_model.slot_machine import UNITS_PER_S, Sender, SlotMachine, rate_waits
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.registry import DEFAULT_ORDER
from dispatcher.policies.percentiles import percentile
from tests.support.world.virtual_time import run

CAPACITY_PER_S = 64 / 3
ABUSE = 100.0
TENANTS, SLOTS, LOADS = (2, 8), (16, 64, 128, 256), (0.5, 0.7, 0.95)
SPREAD = (1 / 3, 5 / 3)
"""Shortest and longest call, of the mean."""
BURST_S = 10.0
QUEUE_MAX = 1000
SECONDS, SEEDS = 600.0, 5
RATIO_MAX = 1.2
GATE_TENANTS, GATE_SLOTS, GATE_WORKERS, GATE_QUEUE, TTL_S, WARMUP_S = 8, 64, 2, 20, 60.0, 10.0
ABUSER = 0


@dataclass(frozen=True)
class Setting:
    """`tenants`: n of the shares; the abuser is one of them. `fronts` 0: the shard alone."""

    tenants: int
    slots: int
    load: float
    seconds: float
    order: str = DEFAULT_ORDER
    burst_s: float = BURST_S
    fronts: int = 0
    call_s: float = 0.0
    """The mean call; 0: so long that CAPACITY_PER_S calls a second fit."""

    @property
    def share_per_s(self) -> float:
        return self.slots / self._mean_s / self.tenants

    @property
    def _mean_s(self) -> float:
        return self.call_s or self.slots / CAPACITY_PER_S

    @property
    def run_s(self) -> tuple[float, float]:
        mean_s = self._mean_s
        return SPREAD[0] * mean_s, SPREAD[1] * mean_s

    def quiet(self) -> list[Sender]:
        """Return the well-behaved tenants."""
        rate = self.slots * UNITS_PER_S / self.tenants
        share = Share(1.0, rate, self.burst_s * rate)
        names = (f"quiet-{number}" for number in range(1, self.tenants))
        return [Sender(name, self.load * self.share_per_s, share) for name in names]


@dataclass(frozen=True)
class Waits:
    """P99 of the well-behaved tenants' waits, in seconds."""

    calls: int
    beside_s: float
    rate_s: float
    slots_s: float
    next_end_s: float


@dataclass(frozen=True)
class Abuse:
    setting: Setting
    waits: Waits
    by_seed: tuple[Waits, ...]

    @property
    def bound_s(self) -> float:
        return RATIO_MAX * self.waits.slots_s + self.setting.run_s[1]

    @property
    def ratios(self) -> dict[str, list[float]]:
        """The ratio of all seeds together, then of each; infinite if a slot was always free."""
        every = (self.waits, *self.by_seed)
        return {
            "rate": [_ratio(each.beside_s, each.rate_s) for each in every],
            "slots": [_ratio(each.beside_s, each.slots_s) for each in every],
        }


@dataclass(frozen=True)
class Samples:
    beside: list[float]
    rate: list[float]
    slots: list[float]
    next_end: list[float]

    def waits(self) -> Waits:
        beside, rate, slots, next_end = (
            percentile(each, 0.99) or 0.0 for each in (self.beside, self.rate, self.slots, self.next_end)
        )
        return Waits(len(self.beside), beside, rate, slots, next_end)


def _ratio(beside_s: float, alone_s: float) -> float:
    return beside_s / alone_s if alone_s > 0 else float("inf")


# ── The order alone ────────────────────────────────────────────────────────────────────────────────────────────────


def of_order(setting: Setting, seeds: int) -> Abuse:
    every = [_samples(setting, seed) for seed in range(1, seeds + 1)]
    together = Samples(*([x for each in every for x in getattr(each, name)] for name in Samples.__annotations__))
    return Abuse(setting, together.waits(), tuple(each.waits() for each in every))


def _samples(setting: Setting, seed: int) -> Samples:
    """Play the tenants together, then each of them alone with the same calls."""
    quiet = setting.quiet()
    abuser = Sender("abuser", ABUSE * setting.share_per_s, Share(), QUEUE_MAX)
    warmup_s = 5 * setting.run_s[1]
    machine = SlotMachine(setting.slots, [*quiet, abuser], setting.run_s, seed, setting.order)
    beside = machine.run(setting.seconds, warmup_s)
    samples = Samples([], [], [], beside.to_next_end)
    for each in quiet:
        alone = SlotMachine(setting.slots // setting.tenants, [each], setting.run_s, seed)
        samples.beside.extend(beside.by_tenant[each.name])
        samples.slots.extend(alone.run(setting.seconds, warmup_s).by_tenant[each.name])
        samples.rate.extend(rate_waits(each, setting.run_s, seed, setting.seconds, warmup_s))
    return samples


# ── The whole gate ─────────────────────────────────────────────────────────────────────────────────────────────────


def of_gate(setting: Setting, seed: int) -> Abuse:
    """Alone at the rate is a server without a gate, so that its waits have no time to decide."""
    beside = run(_gate_waits(setting, seed, [GATE_SLOTS // GATE_WORKERS] * GATE_WORKERS, abused=True))
    slots = run(_gate_waits(setting, seed, [setting.slots // setting.tenants], abused=False))
    every = [rate_waits(each, setting.run_s, seed, setting.seconds, WARMUP_S) for each in setting.quiet()]
    waits = Samples(beside, [wait for each in every for wait in each], slots, []).waits()
    return Abuse(setting, waits, ())


async def _gate_waits(setting: Setting, seed: int, workers: list[int], *, abused: bool) -> list[float]:
    """Return the waits of the well-behaved tenants. One that is alone plays for as long as all together."""
    quiet = list(range(1, setting.tenants if abused else 2))
    rates = [0.0] + [COST * setting.share_per_s] * len(quiet)
    seconds = WARMUP_S + setting.seconds * (1 if abused else setting.tenants - 1)
    run_s, queue_max = setting.run_s, GATE_QUEUE
    gate = await started(setting.fronts, workers, seed, run_s, queue_max=queue_max, ttl_s=TTL_S, rates_per_s=rates)
    begin = gate.fleet.clock.monotonic() + WARMUP_S
    works = [gate.arrive(quiet, setting.load * setting.share_per_s * len(quiet), seconds)]
    if abused:
        works.append(gate.arrive([ABUSER], ABUSE * setting.share_per_s, seconds))
    await asyncio.gather(*works)
    await gate.load.finish(TTL_S)
    tenants = gate.load.measures.tenants
    return [wait for each in quiet for at, wait in tenants[each].waits if at >= begin]


# ── Tables ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def table_of(title: str, abuses: list[Abuse]) -> Table:
    table = Table(title=title)
    for column in (
        "order",
        "fronts",
        "share",
        "slots",
        "call s",
        "load",
        "burst s",
        "calls",
        "beside",
        "rate",
        "ratio",
        "slots alone",
        "ratio",
        "next end",
        "bound",
    ):
        table.add_column(column, justify="right")
    for each in abuses:
        setting, waits = each.setting, each.waits
        table.add_row(
            setting.order,
            str(setting.fronts or "-"),
            f"1/{setting.tenants}",
            str(setting.slots),
            f"{sum(setting.run_s) / 2:.2f}",
            f"{setting.load:.0%}",
            f"{setting.burst_s:g}",
            f"{waits.calls:,}",
            f"{waits.beside_s:.3f}",
            f"{waits.rate_s:.3f}",
            _ratio_text(each.ratios["rate"]),
            f"{waits.slots_s:.3f}",
            _ratio_text(each.ratios["slots"]),
            f"{waits.next_end_s:.3f}" if waits.next_end_s else "-",
            f"{each.bound_s:.2f}",
        )
    return table


def _ratio_text(ratios: list[float]) -> str:
    whole, *seeds = (f"{ratio:.2f}" if ratio < 100 else "free" for ratio in ratios)
    return f"{whole} ({min(seeds)}-{max(seeds)})" if seeds else whole


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_abuse", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of abuse")
    parser.add_argument("--only", choices=("order", "gate"))
    parser.add_argument("--order", default=DEFAULT_ORDER, help="fcfs shows that the measurement can fail")
    parser.add_argument("--tenants", type=int, nargs="+", default=list(TENANTS))
    parser.add_argument("--slots", type=int, nargs="+", default=list(SLOTS))
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--burst", type=float, default=BURST_S, help="seconds of the guaranteed rate")
    parser.add_argument("--call", type=float, default=0.0, help="mean seconds of a call, with any number of slots")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    chosen = parser.parse_args()
    orders, gates = [], []
    if chosen.only != "gate":
        settings = [
            Setting(tenants, slots, load, chosen.seconds, chosen.order, chosen.burst, call_s=chosen.call)
            for tenants in chosen.tenants
            for slots in chosen.slots
            for load in chosen.loads
        ]
        orders = [of_order(each, chosen.seeds) for each in settings]
    if chosen.only != "order":
        settings = [
            Setting(GATE_TENANTS, GATE_SLOTS, load, chosen.seconds, burst_s=GATE_BURST_S, fronts=fronts)
            for fronts in chosen.fronts
            for load in chosen.loads
        ]
        gates = [of_gate(each, 1) for each in settings]
    if chosen.json:
        report = {"order": list(map(asdict, orders)), "gate": list(map(asdict, gates))}
        sys.stdout.write(json.dumps(report) + "\n")
        return 0
    console = Console(width=160)
    for title, abuses in (("the shard alone", orders), ("whole gate", gates)):
        if abuses:
            console.print(table_of(f"Bar 7, {title}: P99 waits in s, beside one at 100 times its share", abuses))
    return 0


if __name__ == "__main__":
    sys.exit(main())
