"""Run unmodified clients against headgate and write the table of their results, docs/clients.md.

`python -m tests.clients [NAME ... | all]`. Exit code 1 if a step fails that clients.toml does not name as failing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.served_stack import Stack, served
from tests.clients.catalogue import FOLDER, Client, chosen, read_clients
from tests.clients.environments import ROOT, Environments, InstallError
from tests.clients.results import ClientResult, mended, page, read_results, unexpected, write_results
from tests.clients.runs import StepResult, run_script
from tests.clients.tokenizer import write_tokenizer

RESULTS, PAGE = FOLDER / "results.json", ROOT / "docs" / "clients.md"
Keep = Callable[[Client, ClientResult], None]
INHERITED = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def main() -> int:
    options = _options()
    clients = read_clients((FOLDER / "clients.toml").read_text())
    try:
        selected = chosen(clients, options.names)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    environments = Environments(options.environments, options.uv, options.torch_version, options.torch_index)
    ran: dict[str, ClientResult] = {}

    def keep(client: Client, result: ClientResult) -> None:
        ran[client.name] = result
        results = read_results(RESULTS) | {client.name: result}
        write_results(RESULTS, results)
        PAGE.write_text(page(clients, results))

    asyncio.run(run_all(selected, environments, Console(), keep))
    return int(any(unexpected(client, ran[client.name]) for client in selected))


async def run_all(clients: list[Client], environments: Environments, console: Console, keep: Keep) -> None:
    """Install and run the clients one after another against one stack. Print and keep each result at once."""
    with tempfile.TemporaryDirectory(prefix="headgate-clients-") as folder:
        write_tokenizer(Path(folder) / "tokenizer")
        async with served(fronts=1, workers=1, slots=8) as stack:
            for client in clients:
                began = time.monotonic()
                result = await asyncio.to_thread(run_one, client, environments, stack, Path(folder) / "tokenizer")
                keep(client, result)
                _show(console, client, result, time.monotonic() - began)


def run_one(client: Client, environments: Environments, stack: Stack, tokenizer: Path) -> ClientResult:
    """Install the client, run its script, and return the results of its steps.

    The script's output is in runs/NAME of the environments' folder.
    """
    try:
        command = environments.prepare(client)
    except InstallError as error:
        return ClientResult(client.requirements, (StepResult("installation", str(error)),))
    home = environments.folder / "runs" / client.name
    shutil.rmtree(home, ignore_errors=True)
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment |= {
        "HOME": str(home),
        "OPENAI_BASE_URL": stack.urls[0],
        "OPENAI_API_KEY": next(iter(stack.keys.values())),
        "CLIENT_MODEL": stack.model,
        "CLIENT_TOKENIZER": str(tokenizer),
        **client.environment,
    }
    return ClientResult(client.requirements, tuple(run_script(command, environment, home, client.limit_s)))


def _show(console: Console, client: Client, result: ClientResult, seconds: float) -> None:
    bad = unexpected(client, result)
    mark = "[red]failed[/]" if bad else "[green]ok[/]"
    console.print(f"{mark}  {client.title}: {result.passed} of {len(result.steps)} steps, {seconds:.0f} s")
    for step in result.steps:
        if step.error:
            kind = "unexpected" if step in bad else client.failing[step.step]
            console.print(f"      {step.step}: {step.error} ({kind})", markup=False, highlight=False, soft_wrap=True)
    for name in mended(client, result):
        console.print(
            f"      {name} passes now: remove it from clients.toml", markup=False, highlight=False, soft_wrap=True
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients of clients.toml, or all; none: those of CI")
    parser.add_argument("--environments", type=Path, default=ROOT / ".clients", help="folder of the environments")
    parser.add_argument("--uv", default=shutil.which("uv") or "", help="path of uv; empty: pip installs")
    parser.add_argument("--torch-version", default="2.13.0")
    parser.add_argument("--torch-index", default="", help="index of torch's CPU build, if pip's own lacks it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
