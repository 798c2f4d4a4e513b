"""The identity that invokes headgate-admin. Lambda does not say it, so the caller proves it.

The caller signs a request to STS, GetCallerIdentity, which every identity may make, and sends its address and headers.
The function sends the request, and STS answers with the ARN of the identity that signed it. The signature
covers a header with the function's name: what was signed for another purpose proves nothing here. It is accepted for a
minute. IAM decides which callers may invoke the function; the identity is for the audit record.

If AWS's variables name an endpoint, as in the local stack, the request goes there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import SplitResult, urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from dispatcher.model.errors import ConfigurationError

BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
HEADER = "x-headgate-function"
_AGE_MAX_S = 60
_ANSWER_S = 5.0
_AWS_HOST = re.compile(r"sts(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?")
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 .*SignedHeaders=([a-z0-9;-]+)")
_PASSED_ON = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")
ARN = re.compile(r"<Arn>(arn:[^<]{1,2048})</Arn>")


async def caller_of(url: str, headers: Mapping[str, str], function: str, now: float) -> str:
    """Return the ARN of the identity that signed the request. `now`: Unix seconds. Raises ConfigurationError."""
    parts = urlsplit(url)
    signed = {name.lower(): value for name, value in headers.items()}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    if not (endpoint or _is_aws(parts)) or not _covers_function(signed):
        raise ConfigurationError("`identity` is no signed GetCallerIdentity request for this function")
    if not abs(now - _signed_at(signed)) <= _AGE_MAX_S:
        raise ConfigurationError("the proof of your identity is older than a minute: set this machine's clock")
    sent = {name: signed[name] for name in _PASSED_ON if name in signed}
    sent |= {HEADER: function, "host": parts.netloc}  # as they must have been signed
    return await _identity(endpoint or f"https://{parts.netloc}/", sent)


async def _identity(target: str, sent: Mapping[str, str]) -> str:
    """Send the request, and return the ARN in STS's answer. Raises ConfigurationError."""
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=_ANSWER_S)) as session,
            session.post(target, data=BODY, headers=sent, allow_redirects=False) as answer,
        ):
            text = await answer.text(errors="replace")
    except (ClientError, TimeoutError):
        raise ConfigurationError("AWS's STS, which names you, does not answer: try again") from None
    found = ARN.search(text)
    if answer.status != 200 or found is None:
        raise ConfigurationError("AWS's STS does not accept the proof of your identity: check your credentials")
    return found[1]


def _covers_function(signed: Mapping[str, str]) -> bool:
    found = _SIGNED.match(signed.get("authorization", ""))
    return found is not None and HEADER in found[1].split(";")


def _signed_at(signed: Mapping[str, str]) -> float:
    """Return when the request was signed, in Unix seconds; minus infinity if it does not say."""
    try:
        return datetime.strptime(signed.get("x-amz-date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return float("-inf")


def _is_aws(parts: SplitResult) -> bool:
    return parts.scheme == "https" and _AWS_HOST.fullmatch(parts.netloc) is not None
