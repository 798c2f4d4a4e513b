"""The operator's token and session: only they open the page, and neither is ever in a URL or in the page."""

from __future__ import annotations

import asyncio
import re
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import ConfigurationError
from dispatcher.monitor.console import make_operator
from dispatcher.settings.config import load_config
from functions.http_api.operator.html import HEADERS, STYLE
from functions.http_api.operator.routes import COOKIE, LIVES_S, is_session, is_token, new_session
from tests.support.asgi import Call, Reply
from tests.support.html import Page
from tests.support.world.logged_pool import TOKEN, LoggedPool
from tests.support.world.memory_gate import Gate

SECRET = {"HEADGATE_WORKER_SECRET": "s" * 16}


@pytest.fixture
async def pool(gate: Gate) -> LoggedPool:
    return LoggedPool(gate)


async def log_in(pool: LoggedPool, token: str, **headers: str) -> Reply:
    body = urlencode({"token": token}).encode()
    return await pool.caller(None).post("/operator/login", raw=body, **headers)


async def seen_with(pool: LoggedPool, cookie: str) -> int:
    return (await pool.caller(None).get("/operator", cookie=f"{COOKIE}={cookie}")).status


def cookie_of(reply: Reply) -> str:
    return SimpleCookie(reply.headers["set-cookie"])[COOKIE].value


async def test_without_a_token_there_is_a_form_and_nothing_of_the_pool(pool: LoggedPool) -> None:
    await pool.worker("secret-worker")
    reply = await pool.caller(None).get("/operator")
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    page = Page(reply.body.decode())
    assert page.tags("form") == [{"method": "post", "action": "operator/login"}]
    assert "secret-worker" not in page.text
    assert "not the operator's token" not in page.text


@pytest.mark.parametrize("token", ["", "x" * len(TOKEN), TOKEN[:-1], TOKEN + "x", "é", "x" * 300])
async def test_another_token_does_not_open_the_page(pool: LoggedPool, token: str) -> None:
    assert (await pool.caller(token).get("/operator")).status == 401
    reply = await log_in(pool, token)
    assert (reply.status, "set-cookie" in reply.headers) == (401, False)
    assert "This is not the operator's token of this front." in reply.body.decode()


async def test_the_token_opens_no_tenants_route(pool: LoggedPool) -> None:
    assert (await pool.caller().get("/v1/usage")).status == 401


async def test_the_form_sets_a_cookie_that_no_script_and_no_other_site_can_use(pool: LoggedPool) -> None:
    reply = await log_in(pool, f" {TOKEN}\n")
    assert (reply.status, reply.headers["location"]) == (303, "../operator")
    attributes = {part.strip().lower() for part in reply.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", f"max-age={LIVES_S}"}
    assert TOKEN not in str(reply.headers)
    assert await seen_with(pool, cookie_of(reply)) == 200


async def test_behind_a_stage_of_api_gateway_every_address_stays_below_it(pool: LoggedPool) -> None:
    """The browser sees a stage before each path, and the front does not."""
    page, login = "https://x.example/live/operator", "https://x.example/live/operator/login"
    form = (await pool.caller(None).get("/operator")).body.decode()
    wrong = (await log_in(pool, "wrong")).body.decode()
    shown = (await pool.caller().get("/operator")).body.decode()
    for address, text in ((page, form), (login, wrong), (page, shown)):
        found = {value for tag in ("form", "a") for each in Page(text).tags(tag) for value in addresses_of(each)}
        assert found, text
        assert {urljoin(address, each).partition("?")[0] for each in found} <= {page, login, f"{page}/logout"}
    assert urljoin(login, (await log_in(pool, TOKEN)).headers["location"]) == page


def addresses_of(tag: dict[str, str]) -> list[str]:
    return [tag[name] for name in ("action", "href") if name in tag]


async def test_behind_https_the_cookie_is_secure(pool: LoggedPool) -> None:
    reply = await log_in(pool, TOKEN, x_forwarded_proto="https")
    assert "; Secure" in reply.headers["set-cookie"]


async def test_a_session_ends_by_time_and_with_a_new_token(pool: LoggedPool) -> None:
    cookie = cookie_of(await log_in(pool, TOKEN))
    await asyncio.sleep(LIVES_S - 2)
    assert await seen_with(pool, cookie) == 200
    await asyncio.sleep(2)
    assert await seen_with(pool, cookie) == 401
    assert not is_session(b"another", new_session(TOKEN.encode(), 0.0), 1.0)


async def test_logging_out_removes_the_cookie(pool: LoggedPool) -> None:
    reply = await Call(pool.caller().app, "POST", "/operator/logout").finished()
    assert (reply.status, reply.headers["location"], cookie_of(reply)) == (303, "../operator", "")
    assert "Max-Age=0" in reply.headers["set-cookie"]


async def test_a_login_with_a_large_body_is_refused(pool: LoggedPool) -> None:
    reply = await pool.caller(None).post("/operator/login", raw=b"token=" + b"x" * 5_000)
    assert reply.status == 413


async def test_a_front_without_a_token_has_no_page(gate: Gate) -> None:
    caller = gate.caller(None)
    for reply in (await caller.get("/operator"), await caller.post("/operator/login", raw=b"token=")):
        assert reply.status == 404
        assert "HEADGATE_OPERATOR_TOKEN is not set" in reply.error["message"]


async def test_the_token_is_read_from_the_configuration(gate: Gate) -> None:
    assert make_operator(gate.context, load_config(SECRET)) is None
    access = make_operator(gate.context, load_config({**SECRET, "HEADGATE_OPERATOR_TOKEN": TOKEN}))
    assert access is not None
    assert access.token == TOKEN.encode()
    with pytest.raises(ConfigurationError, match="HEADGATE_OPERATOR_TOKEN must have at least 32 characters"):
        make_operator(gate.context, load_config({**SECRET, "HEADGATE_OPERATOR_TOKEN": "x" * 31}))


async def test_every_answer_forbids_scripts_frames_and_caches(pool: LoggedPool) -> None:
    replies = [await pool.caller().get("/operator"), await log_in(pool, "x"), await log_in(pool, TOKEN)]
    for reply in replies:
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe-inline" not in policy


@given(st.text(max_size=80))
def test_no_other_text_is_a_session(cookie: str) -> None:
    token = TOKEN.encode()
    if cookie != new_session(token, 0.0):
        assert not is_session(token, cookie, 1.0)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_session_cannot_be_given_another_end(now: int, later: int) -> None:
    token = TOKEN.encode()
    end, _, signature = new_session(token, now).partition(".")
    assert is_session(token, f"{end}.{signature}", now)
    assert is_session(token, f"{later}.{signature}", now) == (later == int(end))


@given(st.text(max_size=250))
def test_only_the_token_is_the_token(text: str) -> None:
    assert is_token(TOKEN.encode(), text) == (text == TOKEN)


def luminance(color: str) -> float:
    """WCAG 2.2, relative luminance of #rrggbb."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast_in_both_schemes(scheme: int) -> None:
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", STYLE.split("@media")[scheme]))
    for text in ("text", "quiet", "accent", "bad"):
        for back in ("back", "head"):
            high, low = sorted((luminance(colors[text]), luminance(colors[back])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)
