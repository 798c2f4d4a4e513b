"""Renders the view of `headgate plan` for the terminal, or as one JSON object."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.model.fleet_plan import GroupPlan
from dispatcher.model.tenants import name_of
from dispatcher.monitor.plan_picture import ModelPicture, PlannedWorkerPicture, PlanPicture
from dispatcher.policies.planning.autoscaling import WorkersNeeded
from headgate.monitor.render import DASH


def plan_json(picture: PlanPicture, needed: WorkersNeeded) -> dict[str, Any]:
    """Return the picture with the keys of `headgate plan --json`. Times are Unix seconds, durations in seconds."""
    return {
        "at": picture.at,
        "position": picture.position,
        "plan": {"made_at": picture.made_at, "is_fresh": picture.is_fresh} if picture.made_at else None,
        "late_requests": picture.late_requests,
        "workers_needed": needed.workers,
        "workers_needed_reason": needed.reason or None,
        "models": [_model_json(model) for model in picture.models],
        "workers": [_worker_json(worker) for worker in picture.workers],
        "groups": [_group_json(number, group) for number, group in enumerate(picture.groups)],
    }


def _model_json(model: ModelPicture) -> dict[str, Any]:
    return {
        "model": model.model,
        "waiting": model.waiting,
        "oldest_s": model.oldest_s,
        "loaded_on": list(model.workers),
        "loading_on": list(model.loading),
    }


def _worker_json(worker: PlannedWorkerPicture) -> dict[str, Any]:
    return {
        "worker": worker.worker,
        "state": worker.state,
        "model": worker.model,
        "loaded_s": worker.loaded_s,
        "swap_s": worker.swap_s,
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
        "late_s": _late_s(group),
        "is_entitled": group.is_entitled,
    }


def plan_view(picture: PlanPicture, needed: WorkersNeeded) -> RenderableType:
    groups = [_groups(picture)] if picture.groups else []
    return Group(_head(picture, needed), _models(picture), _workers(picture), *groups)


def _head(picture: PlanPicture, needed: WorkersNeeded) -> Text:
    age_s = picture.now - picture.made_at
    old = "" if picture.is_fresh else ", too old to be used"
    plan = f"plan: {age_s:.0f} s old{old}, {picture.late_requests} requests late" if picture.made_at else "plan: none"
    count = "unknown" if needed.workers is None else str(needed.workers)
    reason = f" ({needed.reason})" if needed.reason else ""
    return Text(f"{plan}\nworkers: {len(picture.workers)}, needed: {count}{reason}\n")


def _models(picture: PlanPicture) -> Table:
    table = _table("Models", "model", "waiting", "oldest s", "loaded on", "loading on")
    for model in picture.models:
        oldest = f"{model.oldest_s:.0f}" if model.waiting else DASH
        table.add_row(model.model, str(model.waiting), oldest, _names(model.workers), _names(model.loading))
    return table


def _workers(picture: PlanPicture) -> Table:
    table = _table("Workers", "worker", "state", "model", "for s", "ordered", "planned", "next groups")
    for worker in picture.workers:
        loaded = DASH if worker.loaded_s is None else f"{worker.loaded_s:.0f}"
        ordered = f"{worker.ordered}, {worker.ordered_s:.0f} s ago" if worker.ordered else DASH
        order = " ".join(map(str, worker.order)) or DASH
        table.add_row(
            worker.worker, worker.state, worker.model, loaded, ordered, worker.planned or DASH, order
        )  # fmt: skip
    return table


def _groups(picture: PlanPicture) -> Table:
    table = _table("Groups of the plan", "no.", "tenant", "model", "class", "requests", "due in s", "late by s")
    for number, group in enumerate(picture.groups):
        late = f"{_late_s(group):.0f}" if group.is_late else DASH
        table.add_row(
            str(number), group.tenant or "(others)", group.model or DASH, group.slo_class, str(group.requests),
            f"{group.due_at - picture.now:.0f}", late,
        )  # fmt: skip
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or DASH


def _late_s(group: GroupPlan) -> float:
    """Return by how much the last request of the group is expected after the due time of the first."""
    return max(0.0, group.ends_at - group.due_at)
