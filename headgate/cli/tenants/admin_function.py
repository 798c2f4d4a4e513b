"""The administration of tenants through the function headgate-admin, which alone may write them on AWS.

The caller needs `lambda:InvokeFunction` on it (the stack's output AdministratorPolicy), and no access to the table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tenants import AuditRecord, KeyRecord, Tenant
from dispatcher.operations.administration import Deleted, settings_of, with_settings
from dispatcher.processes.caller_identity import BODY, HEADER


class FunctionAdmin:
    """The TenantAdmin of a deployed stack. `function`: its name. Every method raises ConfigurationError."""

    def __init__(self, function: str, session: boto3.Session | None = None) -> None:
        self._function, self._session = function, session or boto3.Session()

    async def create(self, tenant: Tenant) -> str:
        settings = {name: value for name, value in settings_of(tenant).items() if value is not None}
        return str((await self._do("create", tenant=tenant.name, settings=settings))["api_key"])

    async def change(self, name: str, settings: Mapping[str, Any]) -> Tenant:
        return _tenant((await self._do("change", tenant=name, settings=dict(settings)))["tenant"])

    async def delete(self, name: str) -> Deleted:
        answer = await self._do("delete", tenant=name)
        return Deleted(**answer) if answer else Deleted(name, is_erased=False)  # an older function answers nothing

    async def rotate_key(self, name: str, slo_class: str = "", *, lives_s: float | None = None) -> str:
        answer = await self._do("rotate-key", tenant=name, slo_class=slo_class, lives_s=lives_s)
        return str(answer["api_key"])

    async def revoke_key(self, name: str, prefix: str) -> None:
        await self._do("revoke-key", tenant=name, prefix=prefix)

    async def existing(self, name: str) -> Tenant:
        return _tenant((await self._do("show", tenant=name))["tenant"])

    async def all(self) -> Sequence[Tenant]:
        return [_tenant(each) for each in (await self._do("list"))["tenants"]]

    async def keys(self, name: str) -> Sequence[KeyRecord]:
        answer = await self._do("show", tenant=name)
        return [KeyRecord(digest="", tenant=name, **each) for each in answer["keys"]]

    async def audit(self, month: str) -> Sequence[AuditRecord]:
        return [AuditRecord(**each) for each in (await self._do("audit", month=month))["records"]]

    async def _do(self, do: str, **fields: Any) -> dict[str, Any]:
        """Invoke the function with one command, and return its result."""
        answer = await asyncio.to_thread(self._invoke, {"do": do, **fields})
        if "error" in answer:
            raise ConfigurationError(str(answer["error"]))
        result: dict[str, Any] = answer["result"]
        return result

    def _invoke(self, command: Mapping[str, Any]) -> dict[str, Any]:
        try:
            payload = json.dumps({"identity": self.identity(), "command": command}).encode()
            reply = self._session.client("lambda").invoke(FunctionName=self._function, Payload=payload)
        except (BotoCoreError, ClientError) as error:
            raise ConfigurationError(f"{self._function}: {error}") from None
        answer = json.loads(reply["Payload"].read())
        if "FunctionError" in reply:
            message = answer.get("errorMessage", "") if isinstance(answer, dict) else ""
            raise ConfigurationError(f"{self._function} failed: {message or 'look at its log'}")
        found: dict[str, Any] = answer
        return found

    def identity(self) -> dict[str, Any]:
        """Return a signed request to STS for the caller's identity. Only this function can use it, for a minute."""
        sts, credentials = self._session.client("sts"), self._session.get_credentials()
        if credentials is None:
            raise ConfigurationError("no AWS credentials are found: set a profile or AWS's variables")
        headers = {HEADER: _plain_name(self._function), "content-type": "application/x-www-form-urlencoded"}
        request = AWSRequest("POST", f"{sts.meta.endpoint_url}/", headers=headers, data=BODY)
        SigV4Auth(credentials.get_frozen_credentials(), "sts", sts.meta.region_name).add_auth(request)
        return {"url": request.url, "headers": dict(request.headers.items())}


def _plain_name(function: str) -> str:
    """Return the name of a function that is given by its name or its ARN, with or without an alias."""
    parts = function.split(":")
    return parts[6] if len(parts) > 6 else parts[0]


def _tenant(answer: Mapping[str, Any]) -> Tenant:
    identity = answer.get("identity", answer["name"])  # an older function has one text for both
    plain = Tenant(str(identity), version=int(answer["version"]))
    return with_settings(plain, answer["settings"])
