"""Options of `headgate serve`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from headgate.machine.options import FleetOptions, ProcessAddress


class ServeOptions(FleetOptions):
    """Options of a server and its processes. `home` is the data folder."""

    tenants: Path | None = Field(
        default=None, description="YAML file of tenants; those that do not exist yet are created."
    )


class ServeAddresses(BaseModel):
    """The fields of `headgate serve --json`."""

    model_config = ConfigDict(frozen=True)

    openai_base_url: str
    openai_base_urls: list[str]
    data: str
    """The data folder, which the other commands take as `--data`."""
    model: str
    api_keys: dict[str, str]
    """The keys of the tenants that this start created, by name. A key is shown only once."""
    operator_url: str
    """The page for operators; its token is in the file operator-token of the data folder."""
    processes: list[ProcessAddress]
