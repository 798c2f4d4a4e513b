"""Replays a measured run of the VTC artifact, and announces a waiting time for each arrival from the past only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.waiting.log_state import LogState, Row, read
from benchmarks.waiting.scores import Outcome
from dispatcher.policies.planning.fair_drain import FORECAST_S, Rival, service_of_rivals
from dispatcher.policies.planning.waiting import Ahead, WaitingTime, WaitingTimes, expected_wait_s

FIRST_TOKEN, END, ARRIVAL = range(3)
POOL_TOKENS = 10_000


def replay(path: Path, *, fair: bool, horizon_s: float = FORECAST_S) -> list[Outcome]:
    """Return the outcome of each request for which a waiting time was announced. `fair`: not in order of arrival."""
    return list(_outcomes(path, fair, horizon_s))


def pool_tokens(path: Path) -> int:
    """Return the KV pool of the server in tokens, from the name of an A100's run (`a100-13b-<pool>-<length>`)."""
    parts = path.name.split(".")[0].split("-")
    return int(parts[2]) if parts[0] == "a100" else POOL_TOKENS


def _outcomes(path: Path, fair: bool, horizon_s: float) -> Iterator[Outcome]:
    rows = read(path)
    state, times = LogState(pool_tokens(path)), WaitingTimes()
    events = [event for i, row in enumerate(rows) for event in _events(i, row)]
    for now_s, kind, i in sorted(events):
        row = rows[i]
        state.pass_to(now_s)
        if kind == FIRST_TOKEN:
            state.first_token(row)
            times.dispatched(row.number, now_s)
        elif kind == END:
            state.end(row)
        else:
            announced = _announce(state, times, row, fair, horizon_s)
            state.arrive(row)
            if announced is not None:
                yield Outcome(row.first_s - row.arrival_s, announced.p50_s, announced.p90_s)


def _events(i: int, row: Row) -> list[tuple[float, int, int]]:
    return [(row.arrival_s, ARRIVAL, i), (row.first_s, FIRST_TOKEN, i), (row.end_s, END, i)]


def _announce(state: LogState, times: WaitingTimes, row: Row, fair: bool, horizon_s: float) -> WaitingTime | None:
    capacity_per_s, batch = state.capacity_per_s, state.batch()
    if not capacity_per_s:
        return None
    every = sum((state.ahead_of(tenant) for tenant in state.backlogs), Ahead())
    ahead = _fair_ahead(state, row, every, batch.to_free, capacity_per_s, horizon_s) if fair else every
    wait_s = expected_wait_s(ahead, batch, capacity_per_s)
    return times.announce(
        row.number,
        row.arrival_s,
        wait_s,
        ahead,
        capacity_per_s=capacity_per_s,
        kept=batch.kept,
        first_token_s=state.first_token_s,
    )


def _fair_ahead(
    state: LogState, row: Row, every: Ahead, to_free: float, capacity_per_s: float, horizon_s: float
) -> Ahead:
    """Return the tenant's own queue and what the others receive before its end, with the mean variance per service."""
    own = state.ahead_of(row.tenant)
    rivals = [
        Rival(state.ahead_of(tenant).service, state.arrivals[tenant].per_s(row.arrival_s))
        for tenant in list(state.arrivals)
        if tenant != row.tenant
    ]
    own_with = own.service + state.cost(row)
    service = own.service + service_of_rivals(own_with, own.service + to_free, 1.0, rivals, capacity_per_s, horizon_s)
    per_service = every.variance / every.service if every.service else 0.0
    return Ahead(service, service * per_service)
