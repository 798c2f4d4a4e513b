"""The operator's session: a cookie with its end and a signature. It does not contain the token.

Every front that has the token can check it, and no front stores it. A new token ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac

COOKIE = "headgate-operator"
LIVES_S = 12 * 3600
TOKEN_CHARS_MAX = 200


def is_token(token: bytes, given: str) -> bool:
    """Return whether `given` is the token. The time that it takes does not depend on where they differ."""
    if not 0 < len(given) <= TOKEN_CHARS_MAX:
        return False
    return hmac.compare_digest(_digest(given.encode("utf-8", "replace")), _digest(token))


def new_session(token: bytes, now: float) -> str:
    """Return the value of a cookie that is valid for LIVES_S from `now` (Unix seconds)."""
    ends_at = int(now) + LIVES_S
    return f"{ends_at}.{_signature(token, ends_at)}"


def is_session(token: bytes, cookie: str, now: float) -> bool:
    """Return whether the cookie was made with this token and is still valid at `now` (Unix seconds)."""
    end, _, signature = cookie.partition(".")
    if not (end.isascii() and end.isdecimal() and len(end) <= 12 and signature.isascii()):
        return False
    return hmac.compare_digest(signature, _signature(token, int(end))) and now < int(end)


def _signature(token: bytes, ends_at: int) -> str:
    return hmac.new(token, f"operator session until {ends_at}".encode(), hashlib.sha256).hexdigest()


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
