"""Renders the picture of a running gate as the JSON objects of `headgate top`, `tenants show` and `plan`."""

from __future__ import annotations

from typing import Any

from dispatcher.model.fleet import GroupPlan
from dispatcher.model.tenants import name_of
from dispatcher.monitor.picture import ModelPicture, Picture, TenantPicture, WorkerPicture
from dispatcher.policies.planning.autoscaling import WorkersNeeded


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
