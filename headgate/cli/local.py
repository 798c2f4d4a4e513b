"""`headgate local` runs the whole stack in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from headgate.cli.signals import either, interrupted
from headgate.local.options import START_TIMEOUT_S, Addresses, StackOptions, stack_options
from headgate.local.stack import Stack


def local(
    port: Annotated[
        int, typer.Option(help="Port of the HTTP front, which speaks OpenAI's API; 0 takes a free port.")
    ] = 8080,
    fronts: Annotated[int, typer.Option(help="Number of HTTP fronts, on --port and the ports after it.")] = 1,
    aws_port: Annotated[int, typer.Option(help="Port of the AWS endpoint; 0 takes a free port.")] = 0,
    workers: Annotated[int, typer.Option(help="Number of worker processes.")] = 1,
    engine: Annotated[
        str, typer.Option(help="Engine of the workers: transformers, modelled (needs no torch) or vllm.")
    ] = "transformers",
    model: Annotated[
        str | None, typer.Option(help="Folder of a Hugging Face model; default: a small one, built here.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Requests that a worker takes at a time.")] = 8,
    order: Annotated[
        str, typer.Option(help="Order at the gate: bwfq, sfq, fcfs, ratio+wake or ratio (for guarantees only).")
    ] = "bwfq",
    policy: Annotated[str, typer.Option(help="Order of the engine's queue: vtc, fcfs or tiered:vtc.")] = "tiered:vtc",
    store: Annotated[str, typer.Option(help="The local DynamoDB: moto or dynamodb-local.")] = "moto",
    start_timeout: Annotated[
        float, typer.Option(help="Seconds that each process may take to start.")
    ] = START_TIMEOUT_S,
    home: Annotated[
        Path | None, typer.Option(help="Folder for logs and the built model; default: a new temporary folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the addresses as one line of JSON.")] = False,
) -> None:
    """Run the whole stack on this machine, print its addresses and keys, and stop it at Ctrl-C."""
    options = stack_options(
        port=port, fronts=fronts, aws_port=aws_port, workers=workers, engine=engine, model=model, slots=slots,
        order=order, policy=policy, store=store, start_timeout_s=start_timeout,
        home=home or Path(tempfile.mkdtemp(prefix="headgate-")),
    )  # fmt: skip
    asyncio.run(_serve(options, json))


async def _serve(options: StackOptions, json: bool) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError if the stack does not start, or can serve no more."""
    messages = Console(stderr=True)
    over = interrupted()
    stack = Stack(options, on_loss=lambda line: messages.print(line, markup=False, highlight=False, soft_wrap=True))
    try:
        starting = asyncio.ensure_future(stack.start(lambda step: messages.print(f"[dim]{step}[/]")))
        await either(starting, over)
        if over.is_set():
            return
        _show(starting.result(), stack.model, options, json)
        failing = asyncio.ensure_future(stack.failed())
        await either(failing, over)
        if not over.is_set():
            raise ConfigurationError(failing.result())
    finally:
        messages.print("[dim]stopping…[/]")
        await stack.stop()


def _show(addresses: Addresses, model: str, options: StackOptions, json: bool) -> None:
    if json:
        sys.stdout.write(addresses.model_dump_json() + "\n")
        sys.stdout.flush()
        return
    table = Table(title="headgate local", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a key is shown once: whole, however narrow the terminal
    for url in addresses.openai_base_urls:
        table.add_row("OpenAI base URL", url)
    table.add_row("AWS endpoint", addresses.aws_endpoint_url)
    for tenant, key in addresses.api_keys.items():
        table.add_row(f"key of {tenant}", key)
    for process in addresses.processes:
        table.add_row(f"{process.role}, process {process.pid}", process.url or "")
    table.add_row("logs", str(options.home))
    console = Console()
    console.print(table)
    tenant, key = next(iter(addresses.api_keys.items()))
    console.print(f"""
  headgate invoke "What is a headgate?" --base-url {addresses.openai_base_url} --key {key}

  curl {addresses.openai_base_url}/chat/completions -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' -d '{{"model": "{model}", "messages": [{{"role": "user", \
"content": "hello"}}], "max_tokens": 32}}'

  AWS_ENDPOINT_URL={addresses.aws_endpoint_url}   (any AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and region)

Ctrl-C stops everything.""", soft_wrap=True, markup=False, highlight=False)  # fmt: skip
