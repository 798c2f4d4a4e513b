"""The payload of headgate-admin: the caller (processes/caller_identity.py) and one command of `headgate tenants`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dispatcher.settings.sections import TenantSection
from dispatcher.settings.strict import Strict, parse

Name = Annotated[str, Field(max_length=80)]
"""A tenant's name, or its whole identity."""


class Create(Strict):
    do: Literal["create"]
    tenant: Name
    settings: TenantSection


class TenantChange(Strict):
    do: Literal["change"]
    tenant: Name
    settings: TenantSection
    """Only the fields that are given change."""


class Delete(Strict):
    do: Literal["delete"]
    tenant: Name


class RotateKey(Strict):
    do: Literal["rotate-key"]
    tenant: Name
    slo_class: Annotated[str, Field(max_length=64)] = ""
    lives_s: Annotated[float, Field(gt=0)] | None = None


class RevokeKey(Strict):
    do: Literal["revoke-key"]
    tenant: Name
    prefix: Annotated[str, Field(max_length=80)]


class Show(Strict):
    do: Literal["show"]
    tenant: Name


class ListAll(Strict):
    do: Literal["list"]


class Audit(Strict):
    do: Literal["audit"]
    month: Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]


AnyCommand = Create | TenantChange | Delete | RotateKey | RevokeKey | Show | ListAll | Audit

_Text = Annotated[str, Field(max_length=8192)]


class Identity(Strict):
    """A signed request (dispatcher/processes/caller_identity.py)."""

    url: _Text
    headers: Annotated[dict[str, _Text], Field(max_length=16)]


class Envelope(Strict):
    identity: Identity
    command: Annotated[AnyCommand, Field(discriminator="do")]


def read(event: Any) -> tuple[Identity, AnyCommand]:
    """Return the identity and the command. Raises ConfigurationError, which names the field."""
    envelope = parse(Envelope, event, "the payload")
    return envelope.identity, envelope.command
