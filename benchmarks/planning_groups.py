"""Time request groups and entitlement: `python -m benchmarks.planning_groups [--sizes 10 1000 …] [--json]`.

Grouping, for each request, in microseconds: make the request; an arrival (find its group, queue it); a dispatch (the
head for the loaded model, then out of its group); the record of the arrival in the forecast. The baseline, in turn with
them in the same process: one update of a plain dictionary, a count for each (tenant, model, class).

Entitlement, for each call, in milliseconds: all tenants have four groups; half have a guarantee; together they want
four times the capacity. The baseline is the same sum of each tenant's service into a plain dictionary.

Times are CPU times of the thread; figures are those of the median round.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from time import thread_time_ns

from rich.console import Console
from rich.table import Table

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.entitlement import HORIZON_S, GroupDemand, TenantDemand, entitle
from dispatcher.policies.planning.groups import GroupedRequest, TenantGroups
from dispatcher.policies.planning.history import ArrivalForecast, OutputHistory
from dispatcher.policies.planning.slo import SloClasses

SIZES = (10, 1_000, 10_000)
MODELS = ("small", "medium", "large")
CLASSES = ("interactive", "normal", "batch")
REQUESTS = 20_000
"""Arrivals, then as many dispatches, in a round."""
ROUNDS = 9
DEMAND_FACTOR = 4.0
NANOSECONDS_PER_US, NANOSECONDS_PER_MS = 1e3, 1e6

Drawn = tuple[str, str, str, int, float]
"""Tenant, model, class, tokens of the prompt, due time."""


@dataclass(frozen=True)
class Row:
    """Microseconds a request; milliseconds a call of `entitle`, and microseconds for each tenant of it."""

    tenants: int
    make_us: float
    arrival_us: float
    dispatch_us: float
    forecast_us: float
    dictionary_us: float
    entitle_ms: float
    entitle_us_per_tenant: float
    sum_ms: float


class Grouping:
    """One set of tenants and arrivals. Every round starts and ends without waiting requests."""

    def __init__(self, tenants: int) -> None:
        random = Random(tenants)
        names, classes, history = [f"t{number}" for number in range(tenants)], SloClasses(), OutputHistory()
        self.groups = {name: TenantGroups(classes, history) for name in names}
        self.forecast = ArrivalForecast()
        self.requests: list[GroupedRequest] = []
        self.counts: dict[tuple[str, str, str], int] = {}
        self.drawn: list[Drawn] = [
            (
                random.choice(names),
                random.choice(MODELS),
                random.choice(CLASSES),
                min(8_192, int(random.lognormvariate(5.0, 1.0))),
                random.random(),
            )
            for _ in range(REQUESTS)
        ]

    def make(self) -> None:
        self.requests = [
            GroupedRequest(f"r{number}", model, slo_class, tokens, 256, due_at, number)
            for number, (_, model, slo_class, tokens, due_at) in enumerate(self.drawn)
        ]

    def arrive(self) -> None:
        groups = self.groups
        for (tenant, _, _, _, _), request in zip(self.drawn, self.requests, strict=True):
            groups[tenant].add(request)

    def dispatch(self) -> None:
        groups = self.groups
        for tenant, model, _, _, _ in self.drawn:
            of_tenant = groups[tenant]
            head = of_tenant.head(model)
            assert head is not None
            of_tenant.remove(head)

    def record(self) -> None:
        for tenant, _, _, tokens, due_at in self.drawn:
            self.forecast.record(tenant, tokens, due_at)

    def update(self) -> None:
        counts = self.counts
        for tenant, model, slo_class, _, _ in self.drawn:
            key = (tenant, model, slo_class)
            counts[key] = counts.get(key, 0) + 1


def demands_of(tenants: int) -> list[TenantDemand]:
    random = Random(tenants)
    return [
        TenantDemand(
            f"t{number}",
            Share(random.choice((1.0, 2.0, 4.0)), random.uniform(0.0, 1.0) if number % 2 else 0.0),
            [GroupDemand(f"g{at}", 10, random.expovariate(1 / 60), random.uniform(-10.0, 60.0)) for at in range(4)],
            random.expovariate(1 / 60),
        )
        for number in range(tenants)
    ]


def row_of(tenants: int) -> Row:
    grouping, demands = Grouping(tenants), demands_of(tenants)
    capacity_per_s = sum(demand.service for demand in demands) / DEMAND_FACTOR / HORIZON_S
    sums: dict[str, float] = {}

    def add_up() -> None:
        for demand in demands:
            sums[demand.tenant] = sums.get(demand.tenant, 0.0) + demand.service

    ways: list[Callable[[], object]] = [
        grouping.make,
        grouping.arrive,
        grouping.dispatch,
        grouping.record,
        grouping.update,
        lambda: entitle(demands, capacity_per_s),
        add_up,
    ]
    rounds_ns = [[_spent_ns(way) for way in ways] for _ in range(ROUNDS)]
    spent_ns = [median(column) for column in zip(*rounds_ns, strict=True)]
    make_us, arrival_us, dispatch_us, forecast_us, dictionary_us = (
        ns / REQUESTS / NANOSECONDS_PER_US for ns in spent_ns[:5]
    )
    entitle_ms, sum_ms = (ns / NANOSECONDS_PER_MS for ns in spent_ns[5:])
    return Row(
        tenants,
        make_us,
        arrival_us,
        dispatch_us,
        forecast_us,
        dictionary_us,
        entitle_ms,
        1e3 * entitle_ms / tenants,
        sum_ms,
    )


def _spent_ns(way: Callable[[], object]) -> int:
    gc.collect()
    gc.disable()
    begun = thread_time_ns()
    way()
    spent_ns = thread_time_ns() - begun
    gc.enable()
    return spent_ns


def table_of(rows: list[Row]) -> Table:
    table = Table(title="Request groups (microseconds a request) and entitlement (a call)")
    for column in (
        "tenants",
        "make",
        "arrival",
        "dispatch",
        "forecast",
        "dictionary",
        "entitle ms",
        "us a tenant",
        "sum ms",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(f"{row.tenants:,}", *(f"{value:.2f}" for value in list(asdict(row).values())[1:]))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning_groups", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="TENANTS")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    if min(arguments.sizes) < 1:
        parser.error("sizes must be at least 1")
    rows = [row_of(size) for size in arguments.sizes]
    if arguments.json:
        sys.stdout.write(json.dumps({"rows": [asdict(row) for row in rows]}) + "\n")
    else:
        Console(width=120).print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
