"""The proof of who invokes headgate-admin: signed by a real SDK, and passed on to STS as it was signed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import boto3
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dispatcher.model.errors import ConfigurationError
from dispatcher.processes.caller_identity import BODY, HEADER, caller_of
from headgate.cli.tenants.admin_function import FunctionAdmin

FUNCTION = "headgate-admin"
ARN = "arn:aws:sts::123456789012:assumed-role/admin/ada"
REFUSED = "no signed GetCallerIdentity request"


def credentials_of(session: boto3.Session) -> Credentials:
    found = session.get_credentials()
    assert found is not None
    return found


class Sts:
    """Checks signatures as STS does, for one identity."""

    def __init__(self, session: boto3.Session) -> None:
        self.status = 200
        self.requests: list[web.Request] = []
        self._credentials = credentials_of(session)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        body = await request.read()
        assert body == BODY
        names = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        signed = {name: request.headers[name] for name in names}
        again = AWSRequest("POST", f"http://{request.headers['host']}/", data=body.decode(), headers=signed)
        again.context["timestamp"] = request.headers["x-amz-date"]
        signer = SigV4Auth(self._credentials, "sts", "us-east-1")
        expected = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
        is_valid = self.status == 200 and request.headers["authorization"].endswith(expected)
        return web.Response(status=200 if is_valid else 403, text=f"<Arn>{ARN}</Arn>" if is_valid else "<Error/>")


@pytest.fixture
def session() -> boto3.Session:
    return boto3.Session(aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret", region_name="us-east-1")


@pytest.fixture
async def sts(session: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sts]:
    made = Sts(session)
    app = web.Application()
    app.router.add_post("/", made.answer)
    async with TestServer(app) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", str(server.make_url("/")).rstrip("/"))
        yield made


def proof(session: boto3.Session, function: str = FUNCTION) -> dict[str, Any]:
    return FunctionAdmin(function, session).identity()


async def found(identity: dict[str, Any], now: float | None = None) -> str:
    return await caller_of(identity["url"], identity["headers"], FUNCTION, time.time() if now is None else now)


@pytest.mark.parametrize("name", [FUNCTION, f"{FUNCTION}:live", f"arn:aws:lambda:us-east-1:1:function:{FUNCTION}"])
async def test_the_identity_that_signed_is_found(sts: Sts, session: boto3.Session, name: str) -> None:
    assert await found(proof(session, name)) == ARN
    assert len(sts.requests) == 1


async def test_a_proof_for_another_function_is_refused_by_sts(sts: Sts, session: boto3.Session) -> None:
    with pytest.raises(ConfigurationError, match="does not accept"):
        await found(proof(session, "another-function"))


async def test_a_proof_is_good_for_a_minute(sts: Sts, session: boto3.Session) -> None:
    identity = proof(session)
    for now in (time.time() + 120.0, time.time() - 120.0):
        with pytest.raises(ConfigurationError, match="older than a minute"):
            await found(identity, now)
    del identity["headers"]["X-Amz-Date"]
    with pytest.raises(ConfigurationError, match="older than a minute"):
        await found(identity)
    assert sts.requests == []


async def test_a_request_that_was_signed_without_the_functions_name_is_refused(
    sts: Sts, session: boto3.Session
) -> None:
    request = AWSRequest("POST", "https://sts.amazonaws.com/", data=BODY.decode(), headers={})
    SigV4Auth(credentials_of(session), "sts", "us-east-1").add_auth(request)
    with pytest.raises(ConfigurationError, match=REFUSED):
        await found({"url": request.url, "headers": {**dict(request.headers.items()), HEADER: FUNCTION}})
    assert sts.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://sts.us-east-1.amazonaws.com/",
        "https://sts.us-east-1.amazonaws.com.example.org/",
        "https://example.org/sts.us-east-1.amazonaws.com",
        "https://user@sts.us-east-1.amazonaws.com/",
        "https://169.254.169.254/",
        "https://s3.amazonaws.com/",
    ],
)
async def test_no_address_but_that_of_sts_is_called(
    url: str, session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = proof(session)
    for name in ("AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=REFUSED):
        await found({**identity, "url": url})


async def test_sts_that_refuses_or_is_away_is_said_in_one_line(
    sts: Sts, session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = proof(session)
    sts.status = 403
    with pytest.raises(ConfigurationError, match="check your credentials"):
        await found(identity)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="does not answer"):
        await found(identity)
