"""The live view: queue, credit and latency of each tenant while the workload plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dispatcher.model.tenants import name_of
from dispatcher.monitor.picture import Picture
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.demo.measure import Sample

RATE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class TenantNow:
    """A row of the view. `waiting`, `running`: at the gate. `credit`: service units, None without a guarantee.
    `service_rate`: service units a second."""

    name: str
    waiting: int
    running: int
    credit: float | None
    service_rate: float
    ttft_last_s: float | None
    ttft_p99_s: float | None
    sent: int
    answered: int


def tenant_now(name: str, samples: Sequence[Sample], picture: Picture | None, elapsed_s: float) -> TenantNow:
    """Make a tenant's row. `picture`: the gate; None if it is not known. `elapsed_s`: seconds since the play began."""
    own = [sample for sample in samples if sample.tenant == name]
    ttfts = [sample.ttft_s for sample in own if sample.ttft_s is not None]
    gate = picture.tenants if picture else ()
    found = next((each for each in gate if name_of(each.row.tenant) == name), None)
    return TenantNow(
        name=name,
        waiting=found.row.waiting if found else 0,
        running=found.row.running if found else 0,
        credit=found.row.credit if found else None,
        service_rate=_service_rate(own, elapsed_s),
        ttft_last_s=ttfts[-1] if ttfts else None,
        ttft_p99_s=percentile(ttfts, 0.99),
        sent=len(own),
        answered=sum(sample.end_s is not None for sample in own),
    )


def view(title: str, tenants: Sequence[TenantNow], sent: int, total: int, elapsed_s: float) -> RenderableType:
    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("tenant")
    for heading in ("waiting", "running", "credit", "service/s", "first token", "P99", "answered"):
        table.add_column(heading, justify="right")
    for tenant in tenants:
        table.add_row(*_cells(tenant))
    answered = sum(tenant.answered for tenant in tenants)
    progress = ProgressBar(total=max(1, total), completed=answered, width=40)
    caption = Text(f"{elapsed_s:5.1f} s   sent {sent} of {total}, answered {answered}")
    return Group(table, progress, caption)


def _cells(tenant: TenantNow) -> list[str]:
    return [
        tenant.name,
        str(tenant.waiting),
        str(tenant.running),
        "–" if tenant.credit is None else f"{tenant.credit:.0f}",
        f"{tenant.service_rate:.0f}",
        _seconds(tenant.ttft_last_s),
        _seconds(tenant.ttft_p99_s),
        f"{tenant.answered}/{tenant.sent}",
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _service_rate(samples: Sequence[Sample], elapsed_s: float) -> float:
    """Service per second in the last RATE_WINDOW_S, from streamed pieces: the exact count comes with the last piece."""
    since = elapsed_s - RATE_WINDOW_S
    pieces = sum(time_s > since for sample in samples for time_s in sample.token_times_s)
    prompts = sum(s.input_tokens for s in samples if s.first_token_s is not None and s.first_token_s > since)
    return WEIGHTED_TOKENS(prompts, pieces) / max(1.0, min(RATE_WINDOW_S, elapsed_s))
