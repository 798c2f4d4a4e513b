"""The operator's page and its login form as HTML without scripts. Pure: a picture in, bytes out.

Summary and tenants have small charts of bars, one for each hour, as inline SVG. A dashed line is the level that the
bars should reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlencode
from xml.etree.ElementTree import Element

from dispatcher.model.fleet import GroupPlan
from dispatcher.monitor.console import ConsolePicture, ConsoleProblem, TenantLine
from dispatcher.monitor.follower import HOURS, TenantHours
from dispatcher.monitor.picture import Picture, WorkerPicture
from functions.http_api.operator.html import STYLE, Child, element, table, written

PATH = "/operator"
HERE = "operator"
"""The page's address, relative to itself: API Gateway has its stage before the path, which no front knows."""
LOGIN, _LOGOUT = "login", "logout"
LOGIN_PATH, LOGOUT_PATH = f"{PATH}/{LOGIN}", f"{PATH}/{_LOGOUT}"
_REFRESH_S = 10
_DASH = "–"
_BAR, _GAP, _HEIGHT = 8, 2, 28
"""The size of a chart, in pixels."""
GROUPS_MAX = 20
"""The page shows so many groups of the plan: those that are due first."""


@dataclass(frozen=True, slots=True)
class View:
    """`pools`: all of them, and `pool` is the shown one. `find`: the text that tenants were searched by. `refreshes`:
    the browser loads the page again and again."""

    pool: str
    pools: Sequence[str]
    find: str = ""
    refreshes: bool = True

    def fields(self, *, without: str) -> list[Element]:
        """Return the hidden fields of a form that changes one part of the view and keeps the others."""
        kept = {name: value for name, value in self._query().items() if name != without}
        return [element("input", type="hidden", name=name, value=value) for name, value in kept.items()]

    def links(self) -> list[Element]:
        """Return the links to the pools, the shown one marked; none if there is only one pool."""
        if len(self.pools) == 1:
            return []
        shown = {self.pool: {"aria_current": "page"}}
        links = [element("a", name, href=self._address(name), **shown.get(name, {})) for name in self.pools]
        return [element("nav", *links, aria_label="Pools")]

    def _address(self, pool: str) -> str:
        return f"{HERE}?{urlencode({**self._query(), 'pool': pool})}"

    def _query(self) -> dict[str, str]:
        """Return what differs from the page without a query."""
        pool = {"pool": self.pool} if self.pool != self.pools[0] else {}
        find = {"find": self.find} if self.find else {}
        return {**pool, **find, **({} if self.refreshes else {"refresh": "off"})}


def operator_page(picture: ConsolePicture, view: View) -> bytes:
    """Return the page. If the view refreshes, the browser loads it again after _REFRESH_S."""
    main = element(
        "main",
        *map(_problem, picture.problems),
        _summary(picture),
        _tenant_section(picture, view),
        _tier_section(picture),
        *_fleet_sections(picture),
        _usage_section(picture),
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
    refresh = [element("meta", http_equiv="refresh", content=str(_REFRESH_S))] if refreshes else []
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
    at = datetime.fromtimestamp(picture.gate.now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    said = f"{at}, again every {_REFRESH_S} s" if view.refreshes else f"{at}, not refreshed"
    fields = replace(view, refreshes=not view.refreshes).fields(without="")
    button = element("button", "Stop" if view.refreshes else "Refresh")
    switch = element("form", *fields, button, method="get", action=HERE)
    logout = element("form", element("button", "Log out"), method="post", action=f"{HERE}/{_LOGOUT}")
    return element(
        "header", element("h1", f"headgate: {picture.pool}"), *view.links(), element("span", said), switch, logout
    )


def _problem(problem: ConsoleProblem) -> Element:
    return element("div", element("strong", problem.what), " ", problem.do, class_="problem", role="alert")


def _summary(picture: ConsolePicture) -> Element:
    gate = picture.gate
    if not gate.position:
        return element("p", "The log is empty: no worker has joined yet.")
    leader = gate.leader or "none, each process decides alone"
    workers = [each for each in gate.workers if each.state == "serving"]
    running, slots = sum(each.running for each in gate.workers), sum(each.slots for each in workers)
    capacity = f"{gate.capacity_per_s:,.0f}/s" if gate.capacity_per_s else "not measured yet"
    guaranteed = f"{gate.guaranteed_per_s:,.0f}/s"
    facts: list[tuple[str, Child]] = [
        ("Waiting", f"{sum(each.waiting for each in gate.tiers):,}"),
        ("Running, of open slots", f"{running:,} of {slots:,}"),
        ("Serving workers", f"{len(workers):,} of {len(gate.workers):,}"),
        ("Capacity", capacity),
        ("Guaranteed to active tenants", _bad(f"{guaranteed}: overbooked") if gate.is_overbooked else guaranteed),
        (f"Service, last {HOURS} hours", _chart("All tenants", picture.total, gate.capacity_per_s, "capacity")),
        ("Leader", f"{leader} (epoch {gate.epoch})"),
        ("Log", f"position {gate.position:,}, written {max(0.0, gate.now - gate.at):,.0f} s ago"),
    ]
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts))


def _tenant_section(picture: ConsolePicture, view: View) -> Element:
    columns = (
        "Tenant", "Tier", "Waiting", "Running", "Service/s now", "Share", "Guarantee/s", f"Last {HOURS} hours",
        "Wait P50 / P99", "First token P50 / P99",
    )  # fmt: skip
    caption = "Service units in the last minute, and by hour. Dashed: the guarantee. Pale: the hour that has not ended."
    empty = (
        f"No tenant with {view.find!r} in its name."
        if view.find
        else f"No tenant had a request in the last {HOURS} hours."
    )
    rows = table(caption, columns, map(_tenant, picture.tenants), empty=empty, text=2)
    return _section("Tenants", _search(view), element("p", _counts_sentence(picture)), rows)


def _tier_section(picture: ConsolePicture) -> Element:
    rows = [
        (each.tier, str(each.tenants), f"{each.waiting:,}", f"{each.running:,}", _seconds(each.oldest_s))
        for each in picture.gate.tiers
    ]
    columns = ("Tier", "Tenants with requests", "Waiting", "Running", "Longest wait")
    return _section("Waiting by tier", table("Requests by the tier of their tenant.", columns, rows, empty=""))


def _fleet_sections(picture: ConsolePicture) -> Sequence[Element]:
    columns = ("Worker", "State", "Model", "Address", "Running", "Service/s")
    none = "No worker has joined: start one, or look at the events of its ECS service."
    workers = table(
        "Workers in the log. Service: measured, in service units a second.", columns,
        map(_worker, picture.gate.workers), empty=none, text=4,
    )  # fmt: skip
    models = [
        (each.model, _names(each.workers), _names(each.loading), f"{each.waiting:,}",
         _seconds(each.oldest_s if each.waiting else None))
        for each in picture.gate.models
    ]  # fmt: skip
    head = ("Model", "Loaded on", "Loading on", "Waiting", "Longest wait")
    listed = table("Models that workers have or requests wait for.", head, models, empty="No model is known.", text=3)
    return _section("Workers", workers), _section("Models", listed), _plan(picture.gate)


def _usage_section(picture: ConsolePicture) -> Element:
    shown = sorted((each.hours for each in picture.tenants), key=lambda each: each.service, reverse=True)
    used = [each for each in shown if each.requests]
    total = [("All tenants", picture.total)] if picture.total.requests else []
    rows = [_usage(name, each) for name, each in [*total, *((each.tenant, each) for each in used)]]
    columns = ("Tenant", "Requests", "Input tokens", "Output tokens", "Service units")
    caption = f"Requests that ended in the last {HOURS} hours, read at most once a minute."
    return _section("Usage", table(caption, columns, rows, empty=f"No request ended in the last {HOURS} hours."))


def _plan(gate: Picture) -> Element:
    plan = gate.plan
    if plan is None:
        return _section("Plan", element("p", "There is no plan: it is made for workers of several models."))
    old = "" if plan.is_fresh else ", too old to be used"
    said = f"Made {max(0.0, gate.now - plan.made_at):,.0f} s ago{old}. {plan.late_requests:,} requests will be late."
    orders = [
        (each.worker, each.model, each.planned or _DASH, each.ordered or _DASH, " ".join(map(str, each.order)) or _DASH)
        for each in gate.workers
    ]
    numbered = sorted(enumerate(plan.groups), key=lambda pair: pair[1].due_at)
    groups = [
        (str(number), each.tenant or "(others)", each.model or _DASH, each.slo_class, f"{each.requests:,}",
         f"{each.due_at - gate.now:,.0f} s", _late(each))
        for number, each in numbered[:GROUPS_MAX]
    ]  # fmt: skip
    caption = f"Groups of waiting requests: {len(groups)} of {len(plan.groups)}, those that are due first."
    return _section(
        "Plan",
        element("p", said),
        table("Models of the workers.", ("Worker", "Has", "Planned", "Ordered to load", "Next groups"), orders,
              empty="", text=5),
        table(caption, ("Group", "Tenant", "Model", "Class", "Requests", "Due in", "Late by"), groups,
              empty="The plan has no group.", text=4),
    )  # fmt: skip


def _section(title: str, *parts: Child) -> Element:
    return element("section", element("h2", title), *parts)


def _search(view: View) -> Element:
    return element(
        "form",
        element("label", "Find tenants", for_="find"),
        element("input", type="search", name="find", id="find", value=view.find, maxlength="64"),
        *view.fields(without="find"),
        element("button", "Find"),
        method="get",
        action=HERE,
        role="search",
    )


def _counts_sentence(picture: ConsolePicture) -> str:
    known = f"{picture.known:,} {'tenant' if picture.known == 1 else 'tenants'} had requests in the last {HOURS} hours"
    if picture.matching < picture.known:
        known = f"{picture.matching:,} of {known} match"
    shown = len(picture.tenants)
    return f"{known}." if shown == picture.matching else f"{known}. The {shown} busiest are shown; search for others."


def _tenant(line: TenantLine) -> Sequence[Child]:
    chart = _chart(line.name, line.hours, line.rate_per_s, "guarantee")
    tier = line.tier or _DASH
    guarantee: Child = _DASH if not line.rate_per_s else f"{line.rate_per_s:,.0f}"
    if line.active is None:
        return line.name, tier, "0", "0", "0", "0%", guarantee, chart, _DASH, _DASH
    row, recent = line.active.row, line.active.recent
    if line.active.is_below_guarantee:
        guarantee = _bad(f"{guarantee}, below it")
    return (
        line.name, tier, f"{row.waiting:,}", f"{row.running:,}", f"{recent.service_per_s:,.0f}",
        f"{recent.share:.0%}", guarantee, chart, _pair(recent.wait_p50_s, recent.wait_p99_s),
        _pair(recent.first_token_p50_s, recent.first_token_p99_s),
    )  # fmt: skip


def _worker(worker: WorkerPicture) -> Sequence[Child]:
    capacity = f"{worker.service_per_s:,.0f}" if worker.service_per_s else _DASH
    state: Child = worker.state if worker.state == "serving" else _bad(worker.state)
    return worker.worker, state, worker.model, worker.url, f"{worker.running} of {worker.slots}", capacity


def _usage(name: str, hours: TenantHours) -> Sequence[Child]:
    counts = hours.requests, hours.input_tokens, hours.output_tokens, hours.service
    return name, *(f"{count:,.0f}" for count in counts)


def _chart(name: str, hours: TenantHours, level_per_s: float | None, level_name: str) -> Element:
    """Return the chart of service units by hour, the oldest first; the last hour has not ended.

    `level_per_s`: the height of the line in service units a second; None or 0: no line.
    """
    by_hour, level = hours.by_hour, (level_per_s or 0.0) * 3600
    top = max([level, *by_hour]) or 1.0
    bars = [_bar(number, value / top, is_last=number == len(by_hour) - 1) for number, value in enumerate(by_hour)]
    width = len(by_hour) * (_BAR + _GAP)
    line = [_line(width, level / top)] if level else []
    text = f"{name}, service units by hour: {', '.join(f'{value:,.0f}' for value in by_hour)}"
    if level:
        text += f"; {level_name}: {level:,.0f} an hour"
    size = {"viewBox": f"0 0 {width} {_HEIGHT}", "width": str(width), "height": str(_HEIGHT)}
    return element("svg", element("title", text), *bars, *line, role="img", class_="hours", **size)


def _bar(number: int, part: float, *, is_last: bool) -> Element:
    height = part * (_HEIGHT - 2)
    place = {"x": f"{number * (_BAR + _GAP)}", "y": f"{_HEIGHT - height:.1f}"}
    kind = "bar now" if is_last else "bar"
    return element("rect", **place, width=str(_BAR), height=f"{height:.1f}", class_=kind)


def _line(width: int, part: float) -> Element:
    y = f"{_HEIGHT - part * (_HEIGHT - 2):.1f}"
    return element("line", x1="0", x2=str(width), y1=y, y2=y, class_="level")


def _bad(text: str) -> Element:
    return element("span", text, class_="bad")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or _DASH


def _late(group: GroupPlan) -> Child:
    return _bad(f"{group.late_s:,.0f} s") if group.is_late else _DASH


def _seconds(seconds: float | None) -> str:
    return _DASH if seconds is None else f"{max(0.0, seconds):,.0f} s"


def _pair(p50: float | None, p99: float | None) -> str:
    return _DASH if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f} s"
