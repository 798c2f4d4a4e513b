"""`headgate serve`: fair shares of this machine's GPUs, in the foreground until Ctrl-C. Needs no AWS."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headgate.cli.signals import either, interrupted
from headgate.local.options import START_TIMEOUT_S, validated
from headgate.serve.folder import DEFAULT_FOLDER
from headgate.serve.options import ServeAddresses, ServeOptions
from headgate.serve.server import Server


def serve(
    port: Annotated[
        int, typer.Option(help="Port of the HTTP front, which speaks OpenAI's API; 0 takes a free port.")
    ] = 8080,
    host: Annotated[
        str, typer.Option(help="Address on which the front listens; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    engine: Annotated[
        str, typer.Option(help="Engine of the workers: vllm, transformers, or modelled (needs no torch).")
    ] = "transformers",
    model: Annotated[
        str | None, typer.Option(help="Folder of a Hugging Face model; default: a small one, built here.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Requests that a worker takes at a time.")] = 8,
    batch: Annotated[int | None, typer.Option(help="Sequences in the engine's batch; fewer than --slots.")] = None,
    swap_gib: Annotated[float, typer.Option(help="GiB of host memory for swapped KV.")] = 0.0,
    worker_tiers: Annotated[
        Path | None, typer.Option(help="YAML file: tiers, targets and shedding in the workers.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of worker processes.")] = 1,
    fronts: Annotated[int, typer.Option(help="Number of HTTP fronts, on --port and the ports after it.")] = 1,
    order: Annotated[
        str, typer.Option(help="Order at the gate: bwfq, sfq, fcfs, ratio+wake or ratio (for guarantees only).")
    ] = "bwfq",
    policy: Annotated[str, typer.Option(help="Order of the engine's queue: vtc, fcfs or tiered:vtc.")] = "tiered:vtc",
    data: Annotated[
        Path, typer.Option(help="Folder of the database, which keeps tenants, usage and durable work.")
    ] = DEFAULT_FOLDER,
    tenants: Annotated[
        Path | None, typer.Option(help="YAML file of tenants; those that do not exist yet are created.")
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds that each process may take to start.")
    ] = START_TIMEOUT_S,
    json: Annotated[bool, typer.Option("--json", help="Print addresses and new keys as one line of JSON.")] = False,
) -> None:
    """Serve OpenAI's API from this machine, with fair shares, until Ctrl-C. A restart keeps tenants, usage and work."""
    options = validated(
        ServeOptions,
        port=port, host=host, engine=engine, model=model, slots=slots, batch=batch,
        swap_gib=swap_gib, worker_tiers=worker_tiers, workers=workers, fronts=fronts, order=order,
        policy=policy, home=data, tenants=tenants, start_timeout_s=start_timeout,
    )  # fmt: skip
    asyncio.run(_serve(options, json))


async def _serve(options: ServeOptions, json: bool) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError if it does not start."""
    messages = Console(stderr=True)
    over = interrupted()
    server = Server(options, report=lambda line: messages.print(line, markup=False, highlight=False, soft_wrap=True))
    try:
        starting = asyncio.ensure_future(server.start(lambda step: messages.print(f"[dim]{step}[/]")))
        await either(starting, over)
        if not over.is_set():
            _show(starting.result(), json)
            await over.wait()
    finally:
        if over.is_set():
            messages.print("[dim]stopping: running requests finish first[/]")
        await server.stop()


def _show(addresses: ServeAddresses, json: bool) -> None:
    if json:
        sys.stdout.write(addresses.model_dump_json() + "\n")
        sys.stdout.flush()
        return
    table = Table(title="headgate serve", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a key is shown once: whole, however narrow the terminal
    for url in addresses.openai_base_urls:
        table.add_row("OpenAI base URL", url)
    table.add_row("model", addresses.model)
    table.add_row("data", addresses.data)
    for tenant, key in addresses.api_keys.items():
        table.add_row(f"key of {tenant} (shown once)", key)
    console = Console()
    console.print(table)
    console.print(f"""
  headgate tenants create NAME --data {addresses.data}
  headgate top --data {addresses.data}
  headgate usage --data {addresses.data}

Ctrl-C stops everything.""", soft_wrap=True, markup=False, highlight=False)  # fmt: skip
