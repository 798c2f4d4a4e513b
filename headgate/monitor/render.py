"""Renders the view of `headgate top` as a page for the terminal, or as one JSON object."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.model.tenants import name_of
from dispatcher.monitor.picture import Picture, TenantPicture, WorkerPicture

DASH = "–"


def as_json(picture: Picture) -> dict[str, Any]:
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


def view(picture: Picture, now: float, problem: str = "") -> RenderableType:
    """Return the page. `problem` says why the picture is not up to date; it is empty if it is up to date."""
    parts: list[RenderableType] = [_head(picture, now), _tenants(picture), _workers(picture)]
    if problem:
        parts.append(Text(f"not up to date: {problem}", style="red"))
    return Group(*parts)


def _head(picture: Picture, now: float) -> Text:
    if not picture.position:
        return Text("The log is empty: no worker has joined yet.")
    leader = picture.leader or "none, each process decides alone"
    capacity = f"{picture.capacity_per_s:.0f}" if picture.capacity_per_s else "(not measured yet)"
    promised = f"{picture.guaranteed_per_s:.0f} of {capacity} service units/s are guaranteed"
    overbooked = ": OVERBOOKED" if 0 < picture.capacity_per_s < picture.guaranteed_per_s else ""
    return Text(
        f"leader: {leader} (epoch {picture.epoch})\n"
        f"log position: {picture.position}, last entry {max(0.0, now - picture.at):.0f} s ago\n"
        f"{promised}{overbooked}\n"
    )


def _tenants(picture: Picture) -> Table:
    """Return the table of tenants. It fits into eighty columns, because P50 and P99 share a column."""
    table = Table(title="Active tenants, the last minute", title_justify="left", box=None, padding=(0, 1, 0, 0))
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
        f"{row.rate_per_s:g}" if row.rate_per_s else DASH,
        DASH if row.credit is None else f"{row.credit:.0f}",
        _two(recent.wait_p50_s, recent.wait_p99_s),
        _two(recent.first_token_p50_s, recent.first_token_p99_s),
    ]


def _workers(picture: Picture) -> Table:
    table = Table(title="Workers", title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("worker", "state", "running", "service/s", "address", "model"):
        table.add_column(heading, no_wrap=True)
    for worker in picture.workers:
        running = f"{worker.running} of {worker.slots}"
        capacity = f"{worker.service_per_s:.0f}" if worker.service_per_s else DASH
        table.add_row(worker.worker, worker.state, running, capacity, worker.url.removeprefix("http://"), worker.model)
    return table


def _two(p50: float | None, p99: float | None) -> str:
    return DASH if p50 is None or p99 is None else f"{p50:.2f}/{p99:.2f}"
