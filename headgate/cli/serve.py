"""`headgate serve` serves this machine's GPUs in fair shares, in the foreground until Ctrl-C. It needs no AWS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headgate.cli import fleet_options
from headgate.cli.address_table import print_address_table, print_json_line
from headgate.cli.signals import either, interrupted
from headgate.local.options import START_TIMEOUT_S, validated
from headgate.serve.folder import DEFAULT_FOLDER
from headgate.serve.options import ServeAddresses, ServeOptions
from headgate.serve.server import Server


def serve(
    context: typer.Context,
    port: fleet_options.Port = 8080,
    host: Annotated[
        str, typer.Option(help="Address on which the front listens; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    engine: fleet_options.Engine = "transformers",
    model: fleet_options.Model = None,
    fleet: fleet_options.Fleet = None,
    url: fleet_options.Url = None,
    context_tokens: fleet_options.ContextTokens = None,
    slots: fleet_options.Slots = 8,
    batch: Annotated[int | None, typer.Option(help="Sequences in the engine's batch; fewer than --slots.")] = None,
    swap_gib: Annotated[float, typer.Option(help="GiB of host memory for swapped KV.")] = 0.0,
    kv_tokens: Annotated[
        int | None, typer.Option(help="With --engine transformers: tokens of KV; default: what the device can hold.")
    ] = None,
    step_tokens: Annotated[
        int | None, typer.Option(help="With --engine transformers: tokens of a step; longer prompts come in pieces.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="With --engine transformers: auto, float32, bfloat16 or float16.")
    ] = None,
    sleep_memory_gb: Annotated[
        float, typer.Option(help="GB of host memory for each worker's sleeping models; 0: they are stopped instead.")
    ] = 0.0,
    sleep_level: Annotated[
        int, typer.Option(min=1, max=2, help="Of vLLM's sleep: 1 keeps weights in host memory, 2 reads them again.")
    ] = 1,
    worker_tiers: Annotated[
        Path | None, typer.Option(help="YAML file: tiers, targets and shedding in the workers.")
    ] = None,
    workers: fleet_options.Workers = 1,
    fronts: fleet_options.Fronts = 1,
    order: fleet_options.Order = "bwfq",
    policy: fleet_options.Policy = "tiered:vtc",
    data: Annotated[
        Path, typer.Option(help="Folder of the database, which keeps tenants, usage and durable work.")
    ] = DEFAULT_FOLDER,
    tenants: Annotated[
        Path | None, typer.Option(help="YAML file of tenants; those that do not exist yet are created.")
    ] = None,
    start_timeout: fleet_options.StartTimeout = START_TIMEOUT_S,
    json: Annotated[bool, typer.Option("--json", help="Print addresses and new keys as one line of JSON.")] = False,
) -> None:
    """Serve OpenAI's API from this machine, with fair shares, until Ctrl-C. A restart keeps tenants, usage and work.

    With --engine vllm, all arguments after -- are those of vLLM's own server: -- --tensor-parallel-size 4
    """
    options = validated(
        ServeOptions,
        **{
            "port": port, "host": host, "engine": engine, "model": model, "url": url,
            "context_tokens": context_tokens, "slots": slots, "batch": batch, "swap_gib": swap_gib,
            "kv_tokens": kv_tokens, "step_tokens": step_tokens, "dtype": dtype,
            "sleep_memory_gb": sleep_memory_gb, "sleep_level": sleep_level, "worker_tiers": worker_tiers,
            "workers": workers, "fronts": fronts, "order": order, "policy": policy,
            "home": data, "tenants": tenants, "start_timeout_s": start_timeout, "engine_arguments": context.obj or (),
            **fleet_options.fleet_values(fleet, engine, model),
        },
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
        print_json_line(addresses)
        return
    rows = [
        *(("OpenAI base URL", url) for url in addresses.openai_base_urls),
        ("model", addresses.model),
        ("data", addresses.data),
        (f"page for operators (token: {addresses.data}/operator-token)", addresses.operator_url),
        *((f"key of {tenant} (shown once)", key) for tenant, key in addresses.api_keys.items()),
    ]
    next_steps = f"""
  headgate tenants create NAME --data {addresses.data}
  headgate top --data {addresses.data}
  headgate usage --data {addresses.data}

Ctrl-C stops everything."""
    print_address_table("headgate serve", rows, next_steps)
