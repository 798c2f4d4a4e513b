"""The operator's page and its login form as HTML without scripts. Pure: a picture in, bytes out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from dispatcher.monitor.console import ConsolePicture, ConsoleProblem
from functions.http_api.operator.elements import Child, element, written
from functions.http_api.operator.sections import fleet_sections, summary, tenant_section, tier_section, usage_section
from functions.http_api.operator.style import STYLE
from functions.http_api.operator.view import HERE, PATH, View

LOGIN, LOGOUT = "login", "logout"
LOGIN_PATH, LOGOUT_PATH = f"{PATH}/{LOGIN}", f"{PATH}/{LOGOUT}"
REFRESH_S = 10


def operator_page(picture: ConsolePicture, view: View) -> bytes:
    """Return the page. If the view refreshes, the browser loads it again after REFRESH_S."""
    main = element(
        "main",
        *map(_problem, picture.problems),
        summary(picture),
        tenant_section(picture, view),
        tier_section(picture),
        *fleet_sections(picture),
        usage_section(picture),
    )
    return _document(f"headgate: {picture.pool}", _header(picture, view), main, refreshes=view.refreshes)


def login_page(problem: str = "", action: str = f"{HERE}/{LOGIN}") -> bytes:
    """Return the form for the token. `problem`: why the last try failed. `action`: relative to the form's address."""
    form = element(
        "form",
        element("label", "Operator's token", for_="token"),
        element("input", type="password", name="token", id="token", required="", autocomplete="current-password"),
        element("button", "Log in"),
        method="post",
        action=action,
    )
    said = [element("p", problem, class_="bad", role="alert")] if problem else []
    main = element("main", element("h1", "headgate"), *said, form)
    return _document("headgate: log in", main, refreshes=False)


def _document(title: str, *parts: Child, refreshes: bool) -> bytes:
    refresh = [element("meta", http_equiv="refresh", content=str(REFRESH_S))] if refreshes else []
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *refresh,
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", STYLE),
    )
    return written(element("html", head, element("body", *parts), lang="en"))


def _header(picture: ConsolePicture, view: View) -> Element:
    at = datetime.fromtimestamp(picture.now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    said = f"{at}, again every {REFRESH_S} s" if view.refreshes else f"{at}, not refreshed"
    fields = replace(view, refreshes=not view.refreshes).fields(without="")
    button = element("button", "Stop" if view.refreshes else "Refresh")
    switch = element("form", *fields, button, method="get", action=HERE)
    logout = element("form", element("button", "Log out"), method="post", action=f"{HERE}/{LOGOUT}")
    return element(
        "header", element("h1", f"headgate: {picture.pool}"), *view.links(), element("span", said), switch, logout
    )


def _problem(problem: ConsoleProblem) -> Element:
    return element("div", element("strong", problem.what), " ", problem.do, class_="problem", role="alert")
