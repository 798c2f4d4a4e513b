"""`headgate serve` serves this machine's GPUs in fair shares, in the foreground until Ctrl-C. It needs no AWS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headgate.cli.terminal.one_object import takes_fields
from headgate.cli.terminal.serving import either, fleet_values, interrupted, print_address_table, print_json_line
from headgate.machine.options import validated
from headgate.serve.folder import DEFAULT_FOLDER
from headgate.serve.server import ServeAddresses, ServeOptions, Server

OPTIONS = (
    "port", "host", "engine", "model", "fleet", "url", "context_tokens", "slots", "batch", "swap_gib", "kv_tokens",
    "step_tokens", "dtype", "sleep_memory_gb", "sleep_level", "worker_tiers", "workers", "fronts", "order", "policy",
    "tenants", "shards", "start_timeout_s",
)  # fmt: skip


@takes_fields(ServeOptions, *OPTIONS)
def serve(
    context: typer.Context,
    data: Annotated[
        Path, typer.Option(help="Folder of the database, which keeps tenants, usage and durable work.")
    ] = DEFAULT_FOLDER,
    json: Annotated[bool, typer.Option("--json", help="Print addresses and new keys as one line of JSON.")] = False,
    **values: Any,
) -> None:
    """Serve OpenAI's API from this machine, with fair shares, until Ctrl-C. A restart keeps tenants, usage and work.

    With --engine vllm, all arguments after -- are those of vLLM's own server: -- --tensor-parallel-size 4
    """
    values |= {"home": data, "engine_arguments": context.obj or ()}
    options = validated(ServeOptions, **{**values, **fleet_values(values, plays_failures=True)})
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
