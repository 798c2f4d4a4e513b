"""`headgate local` runs the whole stack: until Ctrl-C, or in the background until `headgate local stop`.

When the stack is ready, the command prints its addresses, and lines that a user pastes into a shell to call it with
OpenAI's and AWS's clients.

With --file, the pools of headgate.yaml are processes of this machine. The weights of a pool are in S3, so its workers
have the modelled engine here. Before a server that runs already, a worker forwards to it. Instances, network and domain
have no meaning on one machine and are not used, nor are the settings of vLLM's queue (`worker`).
"""

from __future__ import annotations

import asyncio
import json as json_module
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dispatcher.model.errors import ConfigurationError
from headgate.cli.terminal.one_object import takes_fields
from headgate.cli.terminal.serving import either, fleet_values, interrupted, print_address_table, print_json_line
from headgate.local import background
from headgate.local.seed import CREDENTIALS
from headgate.local.stack import Stack
from headgate.machine.options import WORKERS_MAX, Addresses, StackOptions, WorkerGroup, stack_options
from headgate.machine.places import home_folder

if TYPE_CHECKING:
    from headgate.deployment.model import Deployment
    from headgate.deployment.pool import ForeignServer, Pool


app = typer.Typer(add_completion=False, help="Run the whole stack on this machine.")

_VARIABLES = ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_DEFAULT_ORDER, _DEFAULT_POOL = "bwfq", "default"

_StopHome = Annotated[Path | None, typer.Option(help="The --home that the stack was started with.")]


OPTIONS = (
    "port", "fronts", "aws_port", "workers", "engine", "model", "fleet", "url", "context_tokens", "slots", "order",
    "policy", "store", "start_timeout_s",
)  # fmt: skip


@app.callback(invoke_without_command=True)
@takes_fields(StackOptions, *OPTIONS)
def local(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Option(help="headgate.yaml: its pools, with their models and settings and modelled workers.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="Folder for logs and the built model; default: a temporary one, removed at the end."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the stack is ready; `headgate local stop` ends it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the addresses as one line of JSON.")] = False,
    **given: Any,
) -> None:
    """Run the whole stack on this machine, print its addresses and keys, and stop it at Ctrl-C.

    With --engine vllm, all arguments after -- are those of vLLM's own server: -- --tensor-parallel-size 4
    """
    if context.invoked_subcommand is not None:
        if context.obj:
            raise ConfigurationError(f"`headgate local {context.invoked_subcommand}` takes no arguments after --.")
        return
    described = described_values(file, given["engine"], lambda name: _is_given(context, name))
    values = {**given, "engine_arguments": context.obj or (), **fleet_values(given), **described}
    if detach:
        _detach(stack_options(**values, home=home or background.default_folder()), json)
        return
    with home_folder(home) as folder:
        asyncio.run(_serve(stack_options(**values, home=folder, temporary=None if home else folder), json))


@app.command()
def stop(home: _StopHome = None) -> None:
    """End the stack that `headgate local --detach` started."""
    ended = background.stop(home or background.default_folder())
    sys.stdout.write(f"stopped the stack at {ended.addresses.openai_base_url} (process {ended.pid})\n")


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _detach(options: StackOptions, json: bool) -> None:
    described: dict[str, object] = {
        "--engine": options.engine,
        "--workers": None if options.fleet else options.workers,
        "--model": options.model,
        "--fleet": options.fleet,
        "--url": options.url,
        "--context-tokens": options.context_tokens,
        "--slots": options.slots,
    }
    given = {
        "--port": options.port,
        "--fronts": options.fronts,
        "--aws-port": options.aws_port,
        **({"--file": options.file.absolute()} if options.file else described),
        "--order": options.order,
        "--policy": options.policy,
        "--store": options.store,
        "--start-timeout": options.start_timeout_s,
    }
    arguments = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    rest = ["--", *options.engine_arguments] if options.engine_arguments else []
    step = Console(stderr=True).print
    started = background.detach(options.home, [*arguments, *rest], lambda: step("[dim]starting in the background…[/]"))
    end = f"`{background.stop_command(options.home)}` stops"
    _show(started.addresses, options, json, end)


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
        _show(starting.result(), options, json, "Ctrl-C stops")
        failing = asyncio.ensure_future(stack.failed())
        await either(failing, over)
        if not over.is_set():
            raise ConfigurationError(failing.result())
    finally:
        messages.print("[dim]stopping…[/]")
        await stack.stop()


def _show(addresses: Addresses, options: StackOptions, json: bool, end: str) -> None:
    if json:
        print_json_line(addresses)
        return
    rows = [
        *(("OpenAI base URL", url) for url in addresses.openai_base_urls),
        ("AWS endpoint", addresses.aws_endpoint_url),
        *((f"model of {pool}", model) for pool, model in addresses.pools.items()),
        ("page for operators", addresses.operator_url),
        ("its token", addresses.operator_token),
        *((f"key of {tenant}", key) for tenant, key in addresses.api_keys.items()),
        *((f"{process.role}, process {process.pid}", process.url or "") for process in addresses.processes),
        ("logs", str(options.home / "logs")),
    ]
    print_address_table(
        "headgate local", rows, f"{lines_to_paste(addresses, options.order, options.slo_classes)}\n{end} everything."
    )


def lines_to_paste(addresses: Addresses, order: str, slo_classes: str = "") -> str:
    """Return the lines that a user pastes into a shell, for the first tenant.

    headgate's commands need the gate's order, pools and SLO classes.
    """
    key = next(iter(addresses.api_keys.values()))
    variables = {name: CREDENTIALS[name] for name in _VARIABLES}
    if order != _DEFAULT_ORDER:
        variables["HEADGATE_ORDER"] = order
    if len(addresses.pools) > 1:
        pools = {name: {"models": [model]} for name, model in addresses.pools.items()}
        variables["HEADGATE_POOLS"] = f"'{json_module.dumps(pools, separators=(',', ':'))}'"
    elif _DEFAULT_POOL not in addresses.pools:
        (variables["HEADGATE_POOL"],) = addresses.pools
    if slo_classes:
        variables["HEADGATE_SLO_CLASSES"] = shlex.quote(slo_classes)
    aws = " ".join(f"{name}={value}" for name, value in variables.items())
    body = json_module.dumps(
        {"model": addresses.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 32}
    )
    return f"""
Paste into a shell, for OpenAI's SDKs and for curl:

export OPENAI_BASE_URL={addresses.openai_base_url} OPENAI_API_KEY={key}
curl {addresses.openai_base_url}/chat/completions -H 'Authorization: Bearer {key}' \
-H 'Content-Type: application/json' -d '{body}'

For AWS's SDKs and headgate's commands (tenants, top, usage):

export AWS_ENDPOINT_URL={addresses.aws_endpoint_url} {aws}
headgate invoke "What is a headgate?" --lambda --key {key} --model {addresses.model} --max-tokens 32
"""


_IN_THE_FILE = ("workers", "slots", "model", "fleet", "url", "context_tokens")
"""Parameters of `headgate local` that the file replaces."""
_ENGINE = "modelled"


def described_values(file: Path | None, engine: str, is_given: Callable[[str], bool]) -> dict[str, Any]:
    """Return the options that headgate.yaml decides; none without a file.

    `is_given`: whether the command line has a parameter. Raises ConfigurationError.
    """
    if file is None:
        return {}
    from headgate.deployment.model import load

    for parameter in filter(is_given, _IN_THE_FILE):
        option = "--" + parameter.replace("_", "-")
        raise ConfigurationError(f"--file has the workers and their model: leave out {option}")
    if is_given("engine") and engine != _ENGINE:
        raise ConfigurationError(f"--file has models in S3, which no engine loads here: use --engine {_ENGINE}")
    return {"file": file, **_values_of(load(file), file)}


def _values_of(deployment: Deployment, file: Path) -> dict[str, Any]:
    """Return the options of a deployment. Raises ConfigurationError if it has more parts than one machine takes."""
    parts = sum(len(pool.servers) or 1 for pool in deployment.pools.values())
    if parts > WORKERS_MAX:
        raise ConfigurationError(
            f"{file} needs {parts} workers for its pools and servers, and one machine takes {WORKERS_MAX}"
        )
    most = WORKERS_MAX // parts
    groups = tuple(WorkerGroup(name, each) for name, pool in deployment.pools.items() for each in _groups(pool, most))
    variables = deployment.environment()
    settings = {name: deployment.pool_settings(name) for name in deployment.pools}
    return {
        "groups": groups,
        "batches": any(each.get("slo_classes") for each in settings.values()),
        "slo_classes": variables.pop("HEADGATE_SLO_CLASSES", ""),
        "variables": {**variables, "HEADGATE_POOLS": json_module.dumps(settings)},
    }


def _groups(pool: Pool, workers_max: int) -> list[dict[str, Any]]:
    return [_forwarding(server) for server in pool.servers] or [_modelled_workers(pool, workers_max)]


def _modelled_workers(pool: Pool, workers_max: int) -> dict[str, Any]:
    return {
        "engine": _ENGINE,
        "model": pool.model_name or None,
        "workers": min(workers_max, max(1, pool.count.min)),
        "slots": pool.slots,
        "batch": pool.batch,
    }


def _forwarding(server: ForeignServer) -> dict[str, Any]:
    """Return the options of a worker before a server that runs already."""
    return {
        "engine": "openai",
        "url": server.url,
        "model": server.model,
        "context_tokens": server.context_tokens,
        "workers": 1,
        "slots": server.slots,
        "batch": server.batch,
    }
