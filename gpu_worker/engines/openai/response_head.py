"""Reads the head of a server's HTTP response: its status, its encoding and its Retry-After. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

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
    """Return the seconds that the server asks its client to wait; None if it does not say, or says no time.

    They are in `retry-after-ms`, or in `retry-after` as seconds or as a date. A date counts from the server's own
    `date`, because the clocks of two machines differ.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(milliseconds / 1000, RETRY_AFTER_MAX_S)
    given = headers.get("retry-after", "")
    seconds = _number(given)
    if seconds is None:
        try:
            wait = parsedate_to_datetime(given) - parsedate_to_datetime(headers.get("date", ""))
        except (ValueError, TypeError, OverflowError):
            return None
        seconds = max(0.0, wait.total_seconds())
    return min(seconds, RETRY_AFTER_MAX_S)


def _number(text: str) -> float | None:
    """Return the number that is not negative; None if the text is none."""
    return float(text) if re.fullmatch(r"\s*[0-9]{1,15}(\.[0-9]{0,9})?\s*", text, re.ASCII) else None
