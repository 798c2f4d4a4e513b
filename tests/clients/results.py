"""The results of all clients: results.json, the table in docs/clients.md, and the verdict.

A run replaces the results of the clients that it ran and keeps the others'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.clients.catalogue import Client
from tests.clients.runs import StepResult

INTRODUCTION = """# Clients

Each client runs unmodified in its own environment against `headgate serve --engine modelled`. It gets headgate's base
URL, a key and the model's name, and plays its own quick start: two turns, a tool, and what else it does by default.

```
make test-clients                  # the clients of CI; writes this page
make test-clients CLIENTS=all      # all clients; the load tools install several GB
make test-clients CLIENTS="openai langchain"
```

The versions are in [tests/clients/clients.toml](../tests/clients/clients.toml), the scripts in
`tests/clients/scripts`. A client that was not run keeps its last result. A client
"on request" runs only with `CLIENTS=all` or by its name. MB is the size of the client's environment. A step in bold
failed, and the section "Failing steps" has its error.
"""


@dataclass(frozen=True)
class ClientResult:
    """`requirements`: the versions that ran."""

    requirements: tuple[str, ...]
    steps: tuple[StepResult, ...]

    @property
    def passed(self) -> int:
        return len([step for step in self.steps if not step.error])


def read_results(path: Path) -> dict[str, ClientResult]:
    """Return the results by the client's name; none if there is no file yet."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return {
        name: ClientResult(tuple(result["requirements"]), tuple(StepResult(**step) for step in result["steps"]))
        for name, result in found.items()
    }


def write_results(path: Path, results: Mapping[str, ClientResult]) -> None:
    content = {name: asdict(results[name]) for name in sorted(results)}
    path.write_text(json.dumps(content, indent=1) + "\n")


def unexpected(client: Client, result: ClientResult) -> list[StepResult]:
    """Return the steps that failed and that clients.toml does not name as failing."""
    return [step for step in result.steps if step.error and step.step not in client.failing]


def mended(client: Client, result: ClientResult) -> list[str]:
    """Return the steps that passed although clients.toml names them as failing."""
    return [step.step for step in result.steps if not step.error and step.step in client.failing]


def page(clients: Sequence[Client], results: Mapping[str, ClientResult]) -> str:
    """Return docs/clients.md."""
    rows = ["| client | version | steps | passed | runs | MB |", "| --- | --- | --- | --- | --- | --- |"]
    rows += [_row(client, results.get(client.name)) for client in clients]
    failures = [
        f"| {client.title} | {step.step} | {_cell(step.error)} | {_cell(client.failing.get(step.step, 'unexpected'))} |"
        for client in clients
        for step in (results[client.name].steps if client.name in results else ())
        if step.error
    ]
    failed = (
        ["| client | step | error | reason |", "| --- | --- | --- | --- |", *failures]
        if failures
        else ["No step failed."]
    )
    return "\n".join([INTRODUCTION, *rows, "", "## Failing steps", "", *failed, ""])


def _row(client: Client, result: ClientResult | None) -> str:
    runs, size = "in CI" if client.ci else "on request", str(client.size_mb or "–")
    if result is None:
        return f"| {client.title} | {_versions(client.requirements)} | – | not run yet | {runs} | {size} |"
    steps = ", ".join(step.step if not step.error else f"**{step.step}**" for step in result.steps)
    passed = f"{result.passed} of {len(result.steps)}"
    return f"| {client.title} | {_versions(result.requirements)} | {_cell(steps)} | {passed} | {runs} | {size} |"


def _versions(requirements: Sequence[str]) -> str:
    """Return "openai 3.54.0" for "openai==3.54.0" and "ai 7" for "ai@7"."""
    parts = [each.rpartition("==") if "==" in each else each.rpartition("@") for each in requirements]
    return ", ".join(f"{name} {version}" for name, _, version in parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
