"""The response header with the names of the fields that the gate dropped from a request."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from starlette.responses import Response

HEADER = "x-headgate-dropped-fields"
HEADER_CHARS_MAX = 2_000
"""Servers and proxies limit the bytes of all headers, often to 8,000."""


def name_dropped(response: Response, dropped: Sequence[str]) -> None:
    """Add the header if fields were dropped. Names are separated by commas; other characters than letters, digits and
    . _ - ~ are percent-encoded. Names beyond HEADER_CHARS_MAX are replaced by "..."."""
    if not dropped:
        return
    text = ", ".join(quote(name, safe="") for name in dropped)
    if len(text) > HEADER_CHARS_MAX:
        text = text[:HEADER_CHARS_MAX].rpartition(", ")[0] + ", ..."
    response.headers[HEADER] = text
