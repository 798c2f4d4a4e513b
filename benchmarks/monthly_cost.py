"""The monthly bill of three installations: `python -m benchmarks.monthly_cost [--json]`.

A bill is arithmetic: units times unit prices. The units come from this project's own measurements (`MEASURED`, each
with the file of its figure) and from the size of the installation. The prices are AWS's list prices of PRICED_ON in
us-east-1, without taxes, free tiers, commitments and discounts. Nothing here asks AWS: check the prices before you
quote a bill. docs/cost.md shows the result.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil

from rich.console import Console
from rich.table import Table

PRICED_ON = "2026-11"
HOURS, MINUTES, SECONDS = 730.0, 730 * 60.0, 730 * 3600.0
"""Of a month."""
MILLION = 1e6

PRICES = {
    "GPU instance, g6e.xlarge (hour)": 1.861,
    "disk, gp3 (GB)": 0.08,
    "Fargate, arm64 (vCPU hour)": 0.03238,
    "Fargate, arm64 (GB hour)": 0.00356,
    "load balancer (hour)": 0.0225,
    "load balancer (LCU hour)": 0.008,
    "NAT gateway (hour)": 0.045,
    "NAT gateway (GB)": 0.045,
    "DynamoDB, writes (million)": 0.625,
    "DynamoDB, reads (million)": 0.125,
    "DynamoDB, storage and backup (GB)": 0.25 + 0.20,
    "Lambda, arm64 (GB second)": 0.0000133334,
    "Lambda, requests (million)": 0.20,
    "API Gateway, requests (million)": 3.50,
    "logs, written (GB)": 0.50,
    "metrics (metric)": 0.30,
    "alarms and dashboard": 1.0,
    "secrets (secret)": 0.40,
    "data to the internet (GB)": 0.09,
    "data between zones (GB)": 0.02,
    "public IPv4 addresses (hour)": 0.005,
}
"""Dollars of a unit."""

MEASURED = {
    "read units, idle gate process, per second": 0.75,  # results/gate_capacity.md
    "write units of an invocation, below 100 per second": 3.2,  # results/gate_capacity.md: a process alone
    "write units of an invocation, from 100 per second on": 1.3,  # results/gate_capacity.md: a leader
    "read units of an invocation": 0.9,  # results/gate_capacity.md
    "write units of a durable invocation, beside": 11.5,  # results/gate_capacity.md
    "front CPU of an invocation, seconds": 0.0086,  # results/added_latency.md: 8 tokens
    "front CPU of a token, seconds": 0.00013,  # results/added_latency.md
    "log bytes of an invocation": 740.0,  # counted: the line of functions/observability.py and the metrics beside it
    "metric bytes of a worker and minute": 1_600.0,  # counted: the lines of gpu_worker/service/metric_lines.py
    "metric bytes of an invocation on a worker": 16.0,  # counted: its first token, in lines of 50
    "span bytes of an invocation": 7_000.0,  # counted: six spans as JSON
    "sent span bytes of an invocation": 2_300.0,  # counted: the same as OTLP
}
FRONT_BUSY_MAX = 0.5
"""The part of a front's CPU that is planned to be used."""
FRONT_VCPU, FRONT_GB = 1.0, 2.0
ALARM_METRICS = 33
"""Of all alarms together: CloudWatch bills each metric that an alarm reads."""
DASHBOARD_DOLLARS, ALARM_DOLLARS = 3.0, 0.10
METRICS = 30
"""Six for each tier of a pool, four of the pool, and the functions' own."""
WORKER_METRICS = 16
"""Of a pool with workers (docs/watching.md, "Metrics in CloudWatch")."""
WORKER_DISK_GB = 200.0
BYTES_OF_A_TOKEN = 250.0
"""Of an answer's stream: one event of a chat's chunk."""
BETWEEN_ZONES = 0.5
"""The part of the streams that a worker sends to a front in the other of two zones. (A load balancer's is free.)"""
ADDRESSES = 3
"""One of the NAT gateway, two of a load balancer that faces the internet."""
SWEEP_GB_S = 0.5
"""Of a sweep: a second of 512 MB, which is assumed and not measured on Lambda."""
LCU_CONNECTIONS, LCU_NEW_PER_S = 3_000.0, 25.0
FRONT_LAMBDA_GB = 1.0


@dataclass(frozen=True)
class Installation:
    """`invocations_per_s`: the mean of the month. `seconds`: from an invocation's arrival to its last token."""

    name: str
    workers: float
    invocations_per_s: float
    seconds: float = 15.0
    output_tokens: float = 400.0
    durable: float = 0.1
    """The part of the invocations that has an idempotency key or comes from lambda.invoke."""
    fronts_min: int = 2


INSTALLATIONS = (
    Installation("idle", workers=0, invocations_per_s=0.0),
    Installation("small", workers=1, invocations_per_s=0.5),
    Installation("large", workers=64, invocations_per_s=100.0, fronts_min=4),
)


@dataclass(frozen=True)
class Line:
    item: str
    quantity: float
    price: float

    @property
    def dollars(self) -> float:
        return self.quantity * self.price


def bill(of: Installation) -> list[Line]:
    """Return the lines of a month with the fronts on Fargate, and without those that cost nothing."""
    lines = [Line(item, quantity, PRICES[item]) for item, quantity in _quantities(of)]
    lines.append(Line("alarms and dashboard", 1, ALARM_METRICS * ALARM_DOLLARS + DASHBOARD_DOLLARS))
    return [line for line in lines if line.dollars > 0]


def fronts(of: Installation) -> int:
    """Return how many tasks the fronts need for their CPU time."""
    of_one = (
        MEASURED["front CPU of an invocation, seconds"] + of.output_tokens * MEASURED["front CPU of a token, seconds"]
    )
    return max(of.fronts_min, ceil(of.invocations_per_s * of_one / FRONT_VCPU / FRONT_BUSY_MAX))


def _quantities(of: Installation) -> Iterator[tuple[str, float]]:
    invocations = of.invocations_per_s * SECONDS
    yield "GPU instance, g6e.xlarge (hour)", of.workers * HOURS
    yield "disk, gp3 (GB)", of.workers * WORKER_DISK_GB
    yield "Fargate, arm64 (vCPU hour)", fronts(of) * FRONT_VCPU * HOURS
    yield "Fargate, arm64 (GB hour)", fronts(of) * FRONT_GB * HOURS
    yield "load balancer (hour)", HOURS
    open_streams = of.invocations_per_s * of.seconds
    gigabytes = invocations * of.output_tokens * BYTES_OF_A_TOKEN / 1e9
    units = max(open_streams / LCU_CONNECTIONS, of.invocations_per_s / LCU_NEW_PER_S, gigabytes / HOURS)
    yield "load balancer (LCU hour)", units * HOURS
    yield "data to the internet (GB)", gigabytes
    yield "data between zones (GB)", gigabytes * BETWEEN_ZONES
    yield "public IPv4 addresses (hour)", ADDRESSES * HOURS
    yield "Lambda, arm64 (GB second)", MINUTES * SWEEP_GB_S
    log_gb = (invocations * _log_bytes() + of.workers * MINUTES * MEASURED["metric bytes of a worker and minute"]) / 1e9
    yield "NAT gateway (hour)", HOURS
    yield "NAT gateway (GB)", log_gb
    yield "logs, written (GB)", log_gb
    led = of.invocations_per_s >= 100
    writes = MEASURED[f"write units of an invocation, {'from 100 per second on' if led else 'below 100 per second'}"]
    writes += of.durable * MEASURED["write units of a durable invocation, beside"]
    yield "DynamoDB, writes (million)", invocations * writes / MILLION
    gates = of.workers + fronts(of)
    idle_reads = gates * MEASURED["read units, idle gate process, per second"] * SECONDS
    yield "DynamoDB, reads (million)", (invocations * MEASURED["read units of an invocation"] + idle_reads) / MILLION
    yield "metrics (metric)", METRICS + (WORKER_METRICS if of.workers else 0)
    yield "secrets (secret)", 2


def _log_bytes() -> float:
    """Return the bytes that an invocation leaves in logs, on a front and on a worker."""
    return MEASURED["log bytes of an invocation"] + MEASURED["metric bytes of an invocation on a worker"]


def traces(recorded: float) -> float:
    """Return the dollars of so many recorded invocations: X-Ray keeps spans in a log group, and 1 % indexed is free."""
    kept_gb = recorded * MEASURED["span bytes of an invocation"] / 1e9
    sent_gb = recorded * MEASURED["sent span bytes of an invocation"] / 1e9
    return kept_gb * PRICES["logs, written (GB)"] + sent_gb * PRICES["NAT gateway (GB)"]


def lambda_front(invocations: float, seconds: float) -> float:
    """Return the dollars of fronts in Lambda: an execution is billed while its invocation waits and streams."""
    gb_seconds = invocations * seconds * FRONT_LAMBDA_GB * PRICES["Lambda, arm64 (GB second)"]
    requests = PRICES["Lambda, requests (million)"] + PRICES["API Gateway, requests (million)"]
    return gb_seconds + invocations * requests / MILLION


def fargate_front(tasks: int) -> float:
    """Return the dollars of a month of fronts on Fargate with their load balancer, without traffic."""
    of_a_task = FRONT_VCPU * PRICES["Fargate, arm64 (vCPU hour)"] + FRONT_GB * PRICES["Fargate, arm64 (GB hour)"]
    return HOURS * (tasks * of_a_task + PRICES["load balancer (hour)"])


def break_even(seconds: float, tasks: int = 2) -> float:
    """Return the invocations in a day at which both fronts cost the same."""
    return fargate_front(tasks) / lambda_front(1, seconds) / (HOURS / 24)


def table_of(of: Installation) -> Table:
    lines = bill(of)
    total = sum(line.dollars for line in lines)
    table = Table(title=f"{of.name}: {of.workers:g} workers, {of.invocations_per_s:g} invocations per second")
    table.add_column("item")
    for column in ("units in a month", "$ for a unit", "$"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(line.item, f"{line.quantity:,.1f}", f"{line.price:.10f}".rstrip("0"), f"{line.dollars:,.2f}")
    table.add_row("sum", "", "", f"{total:,.2f}", style="bold")
    return table


def break_even_table() -> Table:
    table = Table(title="Fronts: two tasks on Fargate with a load balancer, or Lambda with 1 GB and API Gateway")
    for column in ("seconds of an invocation", "Lambda: $ for a million", "break-even: invocations a day"):
        table.add_column(column, justify="right")
    for seconds in (5.0, 15.0, 30.0, 120.0):
        table.add_row(f"{seconds:g}", f"{lambda_front(MILLION, seconds):,.0f}", f"{break_even(seconds):,.0f}")
    return table


def traces_table() -> Table:
    table = Table(title="Traces in X-Ray: a month of an installation, by traces_ratio")
    for column in ("installation", "0.01", "0.05", "1"):
        table.add_column(column, justify="right")
    for each in INSTALLATIONS[1:]:
        invocations = each.invocations_per_s * SECONDS
        table.add_row(each.name, *(f"{traces(ratio * invocations):,.2f}" for ratio in (0.01, 0.05, 1.0)))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monthly_cost", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    if parser.parse_args().json:
        bills = {each.name: [asdict(line) | {"dollars": line.dollars} for line in bill(each)] for each in INSTALLATIONS}
        sys.stdout.write(
            json.dumps({"priced_on": PRICED_ON, "bills": bills, "break_even_30_s": break_even(30.0)}) + "\n"
        )
        return 0
    console = Console(width=110)
    for each in INSTALLATIONS:
        console.print(table_of(each))
    console.print(traces_table())
    console.print(break_even_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
