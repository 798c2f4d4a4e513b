"""Options of `headgate serve`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from headgate.local.options import FleetOptions, ProcessAddress


class ServeOptions(FleetOptions):
    """Options of a server and its processes. `home` is the data folder."""

    tenants: Path | None = None
    """YAML file of tenants to create if they do not exist yet."""


class ServeAddresses(BaseModel):
    """The fields of `headgate serve --json`."""

    model_config = ConfigDict(frozen=True)

    openai_base_url: str
    openai_base_urls: list[str]
    data: str
    """The data folder: `--data` of the other commands."""
    model: str
    api_keys: dict[str, str]
    """Keys of the tenants that this start created. A key is shown once."""
    processes: list[ProcessAddress]
