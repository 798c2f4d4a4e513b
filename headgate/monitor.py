"""Renders the picture of a running gate (dispatcher/monitor reads it): views for the terminal, and JSON objects.

The views are those of `headgate top` and `headgate plan`, the objects those of `top`, `tenants show` and `plan`.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.model.fleet import GroupPlan
from dispatcher.model.tenants import name_of
from dispatcher.monitor.picture import ModelPicture, Picture, PlanPicture, TenantPicture, WorkerPicture
from dispatcher.policies.planning.autoscaling import WorkersNeeded

_DASH = "–"


def top_view(picture: Picture, problem: str = "") -> RenderableType:
    """Return the view of `headgate top`. `problem` says why the picture is not up to date; empty if it is."""
    parts: list[RenderableType] = [_gate_head(picture), _tenants(picture), _workers(picture)]
    if problem:
        parts.append(Text(f"not up to date: {problem}", style="red"))
    return Group(*parts)


def _gate_head(picture: Picture) -> Text:
    if not picture.position:
        return Text("The log is empty: no worker has joined yet.")
    leader = picture.leader or "none, each process decides alone"
    capacity = f"{picture.capacity_per_s:.0f}" if picture.capacity_per_s else "(not measured yet)"
    promised = f"{picture.guaranteed_per_s:.0f} of {capacity} service units/s are guaranteed"
    overbooked = ": OVERBOOKED" if picture.is_overbooked else ""
    return Text(
        f"leader: {leader} (epoch {picture.epoch})\n"
        f"log position: {picture.position}, last entry {max(0.0, picture.now - picture.at):.0f} s ago\n"
        f"{promised}{overbooked}\n"
    )


def _tenants(picture: Picture) -> Table:
    """Return the table of tenants. It fits into eighty columns, because P50 and P99 share a column."""
    table = _table("Active tenants, the last minute")
    table.add_column("tenant", no_wrap=True, max_width=14)
    headings = ("wait-\ning", "run-\nning", "\nshare", "\nweight", "service\n/s", "guaran-\nteed/s", "\ncredit")
    for heading in (*headings, "queue s\nP50/P99", "1st token\nP50/P99 s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for tenant in picture.tenants:
        table.add_row(*_tenant_cells(tenant))
    return table


def _tenant_cells(tenant: TenantPicture) -> list[str]:
    row, recent = tenant.row, tenant.recent
    return [
        row.tenant,
        str(row.waiting),
        str(row.running),
        f"{recent.share:.0%}",
        f"{row.weight:g}",
        f"{recent.service_per_s:.0f}",
        f"{row.rate_per_s:g}" if row.rate_per_s else _DASH,
        _DASH if row.credit is None else f"{row.credit:.0f}",
        _two(recent.wait_p50_s, recent.wait_p99_s),
        _two(recent.first_token_p50_s, recent.first_token_p99_s),
    ]


def _workers(picture: Picture) -> Table:
    table = _table("Workers", "worker", "state", "running", "service/s", "address", "model")
    for worker in picture.workers:
        running = f"{worker.running} of {worker.slots}"
        capacity = f"{worker.service_per_s:.0f}" if worker.service_per_s else _DASH
        table.add_row(worker.worker, worker.state, running, capacity, worker.url.removeprefix("http://"), worker.model)
    return table


def _two(p50: float | None, p99: float | None) -> str:
    return _DASH if p50 is None or p99 is None else f"{p50:.2f}/{p99:.2f}"


def plan_view(picture: Picture, needed: WorkersNeeded) -> RenderableType:
    """Return the view of `headgate plan`."""
    groups = [_groups(picture.plan, picture.now)] if picture.plan is not None and picture.plan.groups else []
    return Group(_plan_head(picture, needed), _models(picture), _planned_workers(picture), *groups)


def _plan_head(picture: Picture, needed: WorkersNeeded) -> Text:
    count = "unknown" if needed.workers is None else str(needed.workers)
    reason = f" ({needed.reason})" if needed.reason else ""
    return Text(f"{_plan_state(picture)}\nworkers: {len(picture.workers)}, needed: {count}{reason}\n")


def _plan_state(picture: Picture) -> str:
    plan = picture.plan
    if plan is None:
        return "plan: none"
    old = "" if plan.is_fresh else ", too old to be used"
    return f"plan: {picture.now - plan.made_at:.0f} s old{old}, {plan.late_requests} requests late"


def _models(picture: Picture) -> Table:
    table = _table("Models", "model", "waiting", "oldest s", "loaded on", "loading on")
    for model in picture.models:
        oldest = f"{model.oldest_s:.0f}" if model.waiting else _DASH
        table.add_row(model.model, str(model.waiting), oldest, _names(model.workers), _names(model.loading))
    return table


def _planned_workers(picture: Picture) -> Table:
    table = _table("Workers", "worker", "state", "model", "for s", "ordered", "planned", "next groups")
    for worker in picture.workers:
        loaded = _DASH if worker.loaded_s is None else f"{worker.loaded_s:.0f}"
        ordered = f"{worker.ordered}, {worker.ordered_s:.0f} s ago" if worker.ordered else _DASH
        order = " ".join(map(str, worker.order)) or _DASH
        table.add_row(
            worker.worker, worker.state, worker.model, loaded, ordered, worker.planned or _DASH, order
        )  # fmt: skip
    return table


def _groups(plan: PlanPicture, now: float) -> Table:
    table = _table("Groups of the plan", "no.", "tenant", "model", "class", "requests", "due in s", "late by s")
    for number, group in enumerate(plan.groups):
        late = f"{group.late_s:.0f}" if group.is_late else _DASH
        table.add_row(
            str(number), group.tenant or "(others)", group.model or _DASH, group.slo_class, str(group.requests),
            f"{group.due_at - now:.0f}", late,
        )  # fmt: skip
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or _DASH


def top_json(picture: Picture) -> dict[str, Any]:
    """Return the picture with the keys of `headgate top --json`. Rates are in service units a second."""
    return {
        "at": picture.at,
        "position": picture.position,
        "leader": picture.leader or None,
        "epoch": picture.epoch,
        "capacity_per_s": picture.capacity_per_s,
        "guaranteed_per_s": picture.guaranteed_per_s,
        "tenants": [tenant_json(tenant) for tenant in picture.tenants],
        "workers": [_worker_json(worker) for worker in picture.workers],
    }


def tenant_json(tenant: TenantPicture) -> dict[str, Any]:
    row, recent = tenant.row, tenant.recent
    return {
        "tenant": name_of(row.tenant),
        "identity": row.tenant,
        "tier": row.tier,
        "weight": row.weight,
        "guarantee_per_s": row.rate_per_s,
        "burst": row.burst,
        "waiting": row.waiting,
        "running": row.running,
        "reserved": row.reserved,
        "spent": row.spent,
        "credit": row.credit,
        "clocks": list(row.clocks),
        "share": recent.share,
        "service_per_s": recent.service_per_s,
        "wait_p50_s": recent.wait_p50_s,
        "wait_p99_s": recent.wait_p99_s,
        "first_token_p50_s": recent.first_token_p50_s,
        "first_token_p99_s": recent.first_token_p99_s,
    }


def _worker_json(worker: WorkerPicture) -> dict[str, Any]:
    return {
        "worker": worker.worker,
        "url": worker.url,
        "model": worker.model,
        "state": worker.state,
        "slots": worker.slots,
        "running": worker.running,
        "service_per_s": worker.service_per_s,
    }


def plan_json(picture: Picture, needed: WorkersNeeded) -> dict[str, Any]:
    """Return the picture with the keys of `headgate plan --json`. Times are Unix seconds, durations in seconds."""
    plan = picture.plan
    return {
        "at": picture.at,
        "position": picture.position,
        "plan": {"made_at": plan.made_at, "is_fresh": plan.is_fresh} if plan is not None else None,
        "late_requests": plan.late_requests if plan is not None else 0,
        "workers_needed": needed.workers,
        "workers_needed_reason": needed.reason or None,
        "models": [_model_json(model) for model in picture.models],
        "workers": [_planned_worker_json(worker) for worker in picture.workers],
        "groups": [_group_json(number, group) for number, group in enumerate(plan.groups if plan is not None else ())],
    }


def _model_json(model: ModelPicture) -> dict[str, Any]:
    return {
        "model": model.model,
        "waiting": model.waiting,
        "oldest_s": model.oldest_s,
        "loaded_on": list(model.workers),
        "loading_on": list(model.loading),
    }


def _planned_worker_json(worker: WorkerPicture) -> dict[str, Any]:
    return {
        "worker": worker.worker,
        "state": worker.state,
        "model": worker.model,
        "loaded_s": worker.loaded_s,
        "swap_s": dict(worker.swap_s),
        "ordered": worker.ordered or None,
        "ordered_s": worker.ordered_s if worker.ordered else None,
        "planned": worker.planned or None,
        "order": list(worker.order),
    }


def _group_json(number: int, group: GroupPlan) -> dict[str, Any]:
    return {
        "number": number,
        "tenant": name_of(group.tenant) or None,
        "identity": group.tenant or None,
        "model": group.model or None,
        "slo_class": group.slo_class,
        "length_bucket": group.length_bucket,
        "requests": group.requests,
        "due_at": group.due_at,
        "ends_at": group.ends_at,
        "late_s": group.late_s,
        "is_entitled": group.is_entitled,
    }
