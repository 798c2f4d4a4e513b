"""The routes of the operator's page. The token comes in a header or in the login form, never in the URL.

The operator's session is a cookie with its end and a signature. It does not contain the token. Every front that has the
token can check it, and no front stores it. A new token ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dispatcher.monitor.console import OperatorAccess
from functions.http_api.callers import api_key, context_of
from functions.http_api.connections import read_body
from functions.http_api.operator.html import HEADERS
from functions.http_api.operator.page import (
    HERE,
    LOGIN,
    LOGIN_PATH,
    LOGOUT_PATH,
    PATH,
    View,
    login_page,
    operator_page,
)
from functions.observability import logger

COOKIE = "headgate-operator"
LIVES_S = 12 * 3600
_TOKEN_CHARS_MAX = 200
_FORM_BYTES_MAX = 4_096
_FIND_CHARS_MAX = 64
_BACK = f"../{HERE}"
"""The page's address, relative to the login and the logout. The cookie has no path. So it belongs to the folder of the
login and the logout, which is the page."""
_WRONG = "This is not the operator's token of this front."


async def _page(request: Request) -> Response:
    access = _access(request)
    if not _may_read(request, access):
        wrong = _WRONG if "authorization" in request.headers else ""
        return HTMLResponse(login_page(wrong), 401, headers={**HEADERS, "www-authenticate": "Bearer"})
    view = _view(request, access)
    picture = await access.consoles[view.pool].look(view.find)
    page = operator_page(picture, view)
    return HTMLResponse(page, 503 if picture.problems else 200, headers=HEADERS)


def _view(request: Request, access: OperatorAccess) -> View:
    """Return what the query asks for. A pool that does not exist is the first one."""
    query, pools = request.query_params, tuple(access.consoles)
    pool = query["pool"] if query.get("pool") in pools else pools[0]
    find = query.get("find", "").strip()[:_FIND_CHARS_MAX]
    return View(pool, pools, find, refreshes=query.get("refresh") != "off")


async def _login(request: Request) -> Response:
    access, context = _access(request), context_of(request)
    body = await read_body(request, context.limit_settings.body_s, _FORM_BYTES_MAX)
    (given, *_) = parse_qs(body.decode("utf-8", "replace")).get("token", [""])
    if not is_token(access.token, given.strip()):
        logger.warning("a wrong operator's token was sent")
        return HTMLResponse(login_page(_WRONG, LOGIN), 401, headers=HEADERS)
    response = RedirectResponse(_BACK, 303, headers=HEADERS)
    session = new_session(access.token, context.clock.now())
    response.set_cookie(
        COOKIE, session, max_age=LIVES_S, path=None, secure=_is_https(request), httponly=True, samesite="strict"
    )  # fmt: skip
    return response


async def _logout(request: Request) -> Response:
    _access(request)
    response = RedirectResponse(_BACK, 303, headers=HEADERS)
    response.set_cookie(
        COOKIE, max_age=0, path=None, secure=_is_https(request), httponly=True, samesite="strict"
    )  # fmt: skip
    return response


async def _without_slash(_: Request) -> Response:
    """Redirect to the page by a relative path, which keeps the scheme and the host that the browser used."""
    return RedirectResponse(_BACK, 308, headers=HEADERS)


def _access(request: Request) -> OperatorAccess:
    """Return what the page is read with. Raises HTTPException if this front has no operator's token."""
    access: OperatorAccess | None = request.app.state.operator
    if access is None:
        raise HTTPException(404, "This front has no operator's page: HEADGATE_OPERATOR_TOKEN is not set")
    return access


def _may_read(request: Request, access: OperatorAccess) -> bool:
    given = api_key(request)
    if given is not None:
        return is_token(access.token, given)
    return is_session(access.token, request.cookies.get(COOKIE, ""), context_of(request).clock.now())


def _is_https(request: Request) -> bool:
    """Return whether the browser uses HTTPS, to this process or to a load balancer before it."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"


def is_token(token: bytes, given: str) -> bool:
    """Return whether `given` is the token. The time that it takes does not depend on where they differ."""
    if not 0 < len(given) <= _TOKEN_CHARS_MAX:
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


ROUTES = [
    Route(PATH, _page, methods=["GET"]),
    Route(f"{PATH}/", _without_slash, methods=["GET"]),
    Route(LOGIN_PATH, _login, methods=["POST"]),
    Route(LOGOUT_PATH, _logout, methods=["POST"]),
]
