"""`headgate local` runs the whole stack in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dispatcher.model.errors import ConfigurationError
from headgate.cli import fleet_options
from headgate.cli.address_table import print_address_table, print_json_line
from headgate.cli.signals import either, interrupted
from headgate.local.options import START_TIMEOUT_S, Addresses, StackOptions, stack_options
from headgate.local.stack import Stack


def local(
    port: fleet_options.Port = 8080,
    fronts: fleet_options.Fronts = 1,
    aws_port: Annotated[int, typer.Option(help="Port of the AWS endpoint; 0 takes a free port.")] = 0,
    workers: fleet_options.Workers = 1,
    engine: fleet_options.Engine = "transformers",
    model: fleet_options.Model = None,
    slots: fleet_options.Slots = 8,
    order: fleet_options.Order = "bwfq",
    policy: fleet_options.Policy = "tiered:vtc",
    store: Annotated[str, typer.Option(help="The local DynamoDB: moto or dynamodb-local.")] = "moto",
    start_timeout: fleet_options.StartTimeout = START_TIMEOUT_S,
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
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError if the stack does not start or stops serving."""
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
        print_json_line(addresses)
        return
    rows = [
        *(("OpenAI base URL", url) for url in addresses.openai_base_urls),
        ("AWS endpoint", addresses.aws_endpoint_url),
        *((f"key of {tenant}", key) for tenant, key in addresses.api_keys.items()),
        *((f"{process.role}, process {process.pid}", process.url or "") for process in addresses.processes),
        ("logs", str(options.home)),
    ]
    key = next(iter(addresses.api_keys.values()))
    next_steps = f"""
  headgate invoke "What is a headgate?" --base-url {addresses.openai_base_url} --key {key}

  curl {addresses.openai_base_url}/chat/completions -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' -d '{{"model": "{model}", "messages": [{{"role": "user", \
"content": "hello"}}], "max_tokens": 32}}'

  AWS_ENDPOINT_URL={addresses.aws_endpoint_url}   (any AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and region)

Ctrl-C stops everything."""
    print_address_table("headgate local", rows, next_steps)
