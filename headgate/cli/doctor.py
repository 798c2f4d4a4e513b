"""`headgate doctor` checks an AWS account before a deployment (`before`), a deployed stack (`deployed`), and a running
service (`after`)."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.facts import WorkerSet
from dispatcher.operations.administration import TenantAdmin
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock, RealIds
from dispatcher.settings.config import Config
from headgate.cli.tenants.admins import admin_of
from headgate.cli.terminal.gate_store import Data, with_store
from headgate.cli.terminal.one_object import takes
from headgate.cli.terminal.output import Json
from headgate.doctor.finding import CheckResult, Finding

if TYPE_CHECKING:
    from headgate.doctor.before import AwsAccount
    from headgate.doctor.deployed.stack import DeployedStack, Traffic

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Check an account before, and a service after.")

_MARKS = {
    CheckResult.OK: "[green]✔[/]",
    CheckResult.WARNING: "[yellow]![/]",
    CheckResult.FAILED: "[red]✘[/]",
    CheckResult.SKIPPED: "–",
}


@app.command()
def before(
    file: Annotated[
        Path | None,
        typer.Option(help="Also compare this headgate.yaml with the account's quotas and the region's offers."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="AWS region; default: that of the file, or AWS's own setting.")
    ] = None,
    json: Json = False,
) -> None:
    """Check tools, region, credentials, bootstrap, permission to deploy and quotas. Nothing is changed."""
    from headgate.deployment.model import load
    from headgate.doctor.before import AwsAccount, check_docker, check_node, check_traces, check_weights, fleet_of

    if file is None:
        _report([check_node(), *AwsAccount(region).findings()], json)
    else:
        deployment = load(file)
        fleets = [fleet_of(pool) for pool in deployment.pools.values() if not pool.servers]
        account = AwsAccount(region or deployment.region)
        found = [check_node(), check_docker(deployment), *account.findings(fleets, deployment.zones)]
        has_credentials = any(finding.check == "credentials" and finding.result is CheckResult.OK for finding in found)
        models = {name: pool for name, pool in deployment.pools.items() if pool.model is not None}
        if has_credentials:
            found += [check_weights(account.client("s3"), name, pool) for name, pool in models.items()]
        if deployment.traces == "xray" and has_credentials:
            found.append(check_traces(account.client("xray")))
        _report(found, json)


@dataclass(frozen=True)
class DeployedStackOptions:
    """The options of `deployed`."""

    file: Annotated[Path, typer.Option(help="The headgate.yaml of the stack.")] = Path("headgate.yaml")
    name: Annotated[str | None, typer.Option(help="The stack's name; default: that of the file.")] = None
    region: Annotated[str | None, typer.Option(help="AWS region; default: that of the file, or AWS's own setting.")] = (
        None
    )
    record: Annotated[
        Path | None, typer.Option(help="Also write what was seen to this file, as a dated Markdown table.")
    ] = None
    disturb: Annotated[
        bool,
        typer.Option(
            "--disturb",
            help="Also replace fronts and workers, stop a worker, raise an alarm and take a version back while "
            "requests run. Give a tenant's --key; it takes up to two hours.",
        ),
    ] = False
    base_url: Annotated[str | None, typer.Option(help="OpenAI base URL for --disturb; default: that of the stack.")] = (
        None
    )
    key: Annotated[str | None, typer.Option(help="API key for --disturb; default: HEADGATE_API_KEY.")] = None
    model: Annotated[str | None, typer.Option(help="Model for --disturb; default: the first one of the key.")] = None
    json: Json = False

    def traffic_to(self, stack: DeployedStack) -> Traffic | None:
        """Return what requests to send; None without --disturb. Raises ConfigurationError."""
        from headgate.doctor.deployed.changes import traffic_to

        address = self.base_url or stack.outputs.get("OpenAiBaseUrl", "")
        key = self.key or os.environ.get("HEADGATE_API_KEY", "")
        return traffic_to(address, key, self.model, RealIds().new()) if self.disturb else None


@app.command()
@takes(DeployedStackOptions)
def deployed(options: DeployedStackOptions) -> None:
    """Go through what only AWS can show (docs/operations.md), on a deployed stack. Only --disturb changes anything."""
    from headgate.deployment.model import load
    from headgate.doctor.before import AwsAccount
    from headgate.doctor.deployed.checks import as_markdown, run_checks
    from headgate.doctor.deployed.stack import Deployed

    deployment = load(options.file, options.name)
    account = AwsAccount(options.region or deployment.region)
    now = RealClock().now()
    stack = _stack_of(account, deployment.name)
    found = run_checks(Deployed(account.client, stack, deployment, now, options.traffic_to(stack)))
    if options.record is not None:
        options.record.write_text(as_markdown(stack.name, found, now), encoding="utf-8")
    _report(found, options.json)


def _stack_of(account: AwsAccount, name: str) -> DeployedStack:
    """Raises ConfigurationError if there is no such stack, or AWS cannot be asked."""
    from botocore.exceptions import BotoCoreError, ClientError

    from headgate.doctor.before import reason
    from headgate.doctor.deployed.stack import read_stack

    try:
        stack = read_stack(account.client, name)
    except (BotoCoreError, ClientError) as error:
        raise ConfigurationError(f"the stack {name} cannot be read: {reason(error)}") from None
    if stack is None:
        raise ConfigurationError(f"there is no stack {name} in this region: deploy it, or name it with --name")
    return stack


@dataclass(frozen=True)
class AfterOptions:
    """The options of `after`."""

    base_url: Annotated[str | None, typer.Option(help="OpenAI base URL; default: HEADGATE_BASE_URL.")] = None
    key: Annotated[str | None, typer.Option(help="API key for one request; default: HEADGATE_API_KEY.")] = None
    model: Annotated[str | None, typer.Option(help="Model; default: the first one of the service.")] = None
    fairness: Annotated[
        bool,
        typer.Option("--fairness", help="Also let one tenant flood another: two tenants for the time of the test."),
    ] = False
    data: Data = None
    json: Json = False

    @property
    def address(self) -> str:
        return self.base_url or os.environ.get("HEADGATE_BASE_URL", "")

    @property
    def api_key(self) -> str:
        return self.key or os.environ.get("HEADGATE_API_KEY", "")

    def check(self) -> None:
        """Raise typer.BadParameter for options that do not go together."""
        if self.fairness and not self.address:
            raise typer.BadParameter("--fairness sends requests: give the service's address with --base-url")


@app.command()
@takes(AfterOptions)
def after(service: AfterOptions) -> None:
    """Check table, log, leader, workers and clock, and send one request with the key."""
    service.check()

    async def run(store: Store, config: Config) -> list[Finding]:
        return await _after(store, config, service)

    _report(with_store(service.data, run), service.json)


async def _after(store: Store, config: Config, service: AfterOptions) -> list[Finding]:
    from headgate.doctor.after import check_pools, check_request, check_shares, no_request

    found, followers = await check_pools(store, config, RealClock())
    if followers:
        found.append(await check_shares(admin_of(service.data, store, config).all))
    if service.address and service.api_key:
        found.append(await asyncio.to_thread(check_request, service.address, service.api_key, service.model))
    else:
        found.append(no_request())
    workers = [worker for follower in followers for worker in follower.workers()]
    if service.fairness and followers:
        found.append(await _fairness(admin_of(service.data, store, config), workers, service, config.slo_window))
    return found


async def _fairness(admin: TenantAdmin, workers: Sequence[WorkerSet], service: AfterOptions, window: float) -> Finding:
    from headgate.doctor.after import TestedService, check_fairness

    serving = [worker for worker in workers if worker.state != "silent"]
    model = service.model or (serving[0].model if serving else "")
    slots = sum(worker.slots for worker in serving if worker.model == model)
    place = TestedService(service.address, model, slots, window)
    return await check_fairness(admin, RealIds(), place)


def _report(found: Sequence[Finding], json: bool) -> None:
    """Print the findings. Raises typer.Exit: 1 if a check failed, otherwise 0."""
    if json:
        sys.stdout.write(json_module.dumps({"findings": [asdict(finding) for finding in found]}) + "\n")
    else:
        console = Console(highlight=False, soft_wrap=True)
        for finding in found:
            console.print(f"{_MARKS[finding.result]} {finding.check}: {escape(finding.seen)}")
            if finding.advice:
                console.print(f"  → {escape(finding.advice)}")
    raise typer.Exit(1 if any(finding.result is CheckResult.FAILED for finding in found) else 0)
