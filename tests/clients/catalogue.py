"""The clients that clients.toml names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Client:
    """One entry of clients.toml, which explains the fields. `size_mb` 0: not measured. `venv` empty: its own."""

    name: str
    title: str
    script: str
    requirements: tuple[str, ...]
    limit_s: float
    runtime: Literal["python", "node"] = "python"
    torch: bool = False
    venv: str = ""
    ci: bool = True
    size_mb: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)

    @property
    def script_path(self) -> Path:
        return FOLDER / "scripts" / self.script


def read_clients(text: str) -> list[Client]:
    """Return the clients in the order of the file. Raises TypeError if an entry has an unknown or lacks a field."""
    return [_client(name, fields) for name, fields in tomllib.loads(text).items()]


def _client(name: str, fields: dict[str, Any]) -> Client:
    return Client(name=name, requirements=tuple(fields.pop("requirements")), **fields)


def chosen(clients: list[Client], names: list[str]) -> list[Client]:
    """Return the clients of CI if `names` is empty, all of them for "all". Raises ValueError for an unknown name."""
    if not names:
        return [client for client in clients if client.ci]
    if names == ["all"]:
        return clients
    if unknown := set(names) - {client.name for client in clients}:
        known = ", ".join(client.name for client in clients)
        raise ValueError(f"no client called {', '.join(sorted(unknown))}; there are {known}, and all")
    return [client for client in clients if client.name in names]
