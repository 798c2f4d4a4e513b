"""Sends spans to the endpoint of the SDK's own variables (OTEL_EXPORTER_OTLP_*): a collector, or X-Ray.

X-Ray takes OTLP at https://xray.REGION.amazonaws.com/v1/traces. It needs no collector beside the process; its requests
are signed with the credentials of the process (SigV4, service `xray`). AWS describes this as traces without a
collector: docs.aws.amazon.com, CloudWatch, "OTLP endpoints".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import botocore.session
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter
from requests.auth import AuthBase

from dispatcher.model.errors import ConfigurationError

SEND_S = 2.0
"""The longest time for the receiver to take a batch, tries included. The SDK's 10 s exceed what a function has left."""
XRAY = re.compile(r"https://xray\.([a-z0-9-]+)\.amazonaws\.(com|com\.cn|eu)(/.*)?")


def make_exporter(endpoint: str) -> SpanExporter:
    """Return an exporter to `endpoint`, the value of OTEL_EXPORTER_OTLP_ENDPOINT. Raises ConfigurationError if it is
    X-Ray's and the process has no AWS credentials."""
    found = XRAY.fullmatch(endpoint)
    return OTLPSpanExporter(timeout=SEND_S, session=signed_session(found[1], _credentials()) if found else None)


def signed_session(region: str, credentials: Credentials) -> requests.Session:
    """Return a session that signs each request for X-Ray in this region."""
    session = requests.Session()
    session.auth = _SigV4(region, credentials)
    return session


def _credentials() -> Credentials:
    try:
        found = botocore.session.get_session().get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"no AWS credentials for X-Ray: {error}") from None
    if found is None:
        advice = "give the process a role, or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        raise ConfigurationError(f"OTEL_EXPORTER_OTLP_ENDPOINT is X-Ray's, and there are no AWS credentials; {advice}")
    return found


@dataclass(frozen=True, slots=True)
class _SigV4(AuthBase):
    region: str
    credentials: Credentials

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        signed = AWSRequest(request.method, request.url, data=request.body)
        SigV4Auth(self.credentials.get_frozen_credentials(), "xray", self.region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        return request
