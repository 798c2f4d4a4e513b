"""Spans for X-Ray are signed: the signature is computed here a second time, from AWS's description of SigV4."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from random import Random

import botocore.session
import pytest
from botocore.credentials import Credentials
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from dispatcher.model.errors import ConfigurationError
from dispatcher.otlp import OtlpTracing, make_exporter, signed_session
from dispatcher.processes.bootstrap import RealClock, make_tracing
from tests.support.otlp_collector import Collector, Received, otlp_collector

KEY_ID, SECRET, TOKEN = "AKIDEXAMPLE", "an-example-secret", "a-session-token"
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), SignedHeaders=(?P<headers>[^,]+),"
    r" Signature=(?P<signature>[0-9a-f]{64})"
)


def signature_of(received: Received, secret: str) -> str:
    """The signature that AWS expects (IAM User Guide, "Create a signed AWS API request")."""
    named = AUTHORIZATION.fullmatch(received.headers["authorization"])
    assert named is not None
    headers = "".join(f"{name}:{received.headers[name]}\n" for name in named["headers"].split(";"))
    body = sha256(received.body).hexdigest()
    canonical = f"POST\n{received.path}\n\n{headers}\n{named['headers']}\n{body}"
    digest = sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{received.headers['x-amz-date']}\n{named['scope']}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in [*named["scope"].split("/"), text]:
        key = hmac.new(key, part.encode(), sha256).digest()
    return key.hex()


async def sent(collector: Collector, token: str | None) -> Received:
    session = signed_session("eu-west-1", Credentials(KEY_ID, SECRET, token))
    exporter = OTLPSpanExporter(f"{collector.url}/v1/traces", session=session)
    tracing = OtlpTracing("test", 1.0, Random(1), RealClock(), exporter, None)
    tracing.begin("admitted", "", {}).end("offer")
    await tracing.flush()
    (received,) = collector.requests
    return received


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_a_request_has_the_signature_that_aws_expects(token: str | None) -> None:
    with otlp_collector() as collector:
        received = await sent(collector, token)
    named = AUTHORIZATION.fullmatch(received.headers["authorization"])
    assert named is not None
    assert named["key"] == KEY_ID
    assert re.fullmatch(r"\d{8}/eu-west-1/xray/aws4_request", named["scope"])
    assert {"host", "x-amz-date"} <= set(named["headers"].split(";"))
    assert received.headers.get("x-amz-security-token") == token
    assert ("x-amz-security-token" in named["headers"]) == (token is not None)
    assert named["signature"] == signature_of(received, SECRET) != signature_of(received, "another")
    assert [span.name for span in collector.spans] == ["admitted"]


def test_the_secret_does_not_leave_the_process() -> None:
    session = signed_session("eu-west-1", Credentials(KEY_ID, SECRET))
    assert SECRET not in repr(session.auth)


@pytest.mark.parametrize(
    ("endpoint", "is_signed"),
    [
        ("https://xray.eu-west-1.amazonaws.com", True),
        ("https://xray.cn-north-1.amazonaws.com.cn/", True),
        ("https://xray.eusc-de-east-1.amazonaws.eu", True),
        ("http://xray.eu-west-1.amazonaws.com", False),
        ("https://xray.eu-west-1.amazonaws.com.example.com", False),
        ("https://collector.example.com:4318", False),
        ("http://127.0.0.1:4318", False),
    ],
)
def test_only_requests_to_xray_are_signed(endpoint: str, is_signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("dispatcher.otlp.signed_session", lambda region, _: asked.append(region))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    make_exporter(endpoint)
    assert asked == ([endpoint.split(".")[1]] if is_signed else [])


def test_xray_without_credentials_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://xray.eu-west-1.amazonaws.com")
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda self: None)
    with pytest.raises(ConfigurationError, match="no AWS credentials; give the process a role"):
        make_tracing("front")
