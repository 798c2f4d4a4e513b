"""Reads the head of a server's HTTP response: its status, its encoding and its Retry-After. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite

from gpu_worker.engines.openai.sse import Nonsense

RETRY_AFTER_MAX_S = 86_400.0


def is_success(status: int) -> bool:
    return 200 <= status <= 299


def check_encoding(headers: Mapping[str, str]) -> None:
    """Raises Nonsense for a compressed body: the client asks for none, and a small one could fill the memory."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise Nonsense(
            "the server compresses its answers; headgate asks for none: configure it, or the proxy before it"
        )


def is_framed(headers: Mapping[str, str]) -> bool:
    """Return whether HTTP shows the end of the body, so that a broken connection is an error and not the end."""
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, which may be a date; None if there is none or it is no time to wait."""
    given = headers.get("retry-after", "").strip()
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(given) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(seconds, RETRY_AFTER_MAX_S) if isfinite(seconds) and seconds >= 0 else None
