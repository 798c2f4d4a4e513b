"""The payload of headgate-admin: the caller (dispatcher/caller_identity.py) and one command of `headgate tenants`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dispatcher.model.errors import ConfigurationError
from dispatcher.sections import TenantSection

Name = Annotated[str, Field(max_length=80)]
"""A tenant's name, or its whole identity."""


class Command(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Create(Command):
    do: Literal["create"]
    tenant: Name
    settings: TenantSection


class TenantChange(Command):
    do: Literal["change"]
    tenant: Name
    settings: TenantSection
    """Only the fields that are given change."""


class Delete(Command):
    do: Literal["delete"]
    tenant: Name


class RotateKey(Command):
    do: Literal["rotate-key"]
    tenant: Name
    slo_class: Annotated[str, Field(max_length=64)] = ""
    lives_s: Annotated[float, Field(gt=0)] | None = None


class RevokeKey(Command):
    do: Literal["revoke-key"]
    tenant: Name
    prefix: Annotated[str, Field(max_length=80)]


class Show(Command):
    do: Literal["show"]
    tenant: Name


class ListAll(Command):
    do: Literal["list"]


class Audit(Command):
    do: Literal["audit"]
    month: Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]


AnyCommand = Create | TenantChange | Delete | RotateKey | RevokeKey | Show | ListAll | Audit
_COMMANDS: TypeAdapter[AnyCommand] = TypeAdapter(Annotated[AnyCommand, Field(discriminator="do")])


Text = Annotated[str, Field(max_length=8192)]


class Identity(Command):
    """A signed request (dispatcher/caller_identity.py)."""

    url: Text
    headers: Annotated[dict[str, Text], Field(max_length=16)]


class Envelope(Command):
    identity: Identity
    command: dict[str, Any]


def read(event: Any) -> tuple[Identity, AnyCommand]:
    """Return the identity and the command. Raises ConfigurationError, which names the field."""
    try:
        envelope = Envelope.model_validate(event)
        return envelope.identity, _COMMANDS.validate_python(envelope.command)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the payload"
        raise ConfigurationError(f"{place}: {first['msg']}") from None
