"""Decides the heartbeats of workers. A heartbeat becomes a fact only if it changes a value that decisions depend on."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.commands import Attempts, Report, Retire
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import CAPACITY_MAX, LoadableModel
from dispatcher.model.formats import OLDEST
from dispatcher.shard.fold import Decision
from dispatcher.shard.state.records import FOR_A_TIME, Worker
from dispatcher.shard.state.state import State

_CHANGE = 0.1
"""A measured capacity or swap time is logged if it differs from the logged one by more than this fraction."""

RETIRE_S = 180.0
"""A worker retires for so long after each Retire: three sweeps."""
USABLE = frozenset({"serving", "resting"})
"""The states of workers that get new work, now or in some seconds."""


def report(decision: Decision, command: Report) -> Attempts:
    """Log the worker if it is new or changed, and answer with the attempts that the log holds for it."""
    state = decision.state
    state.kv_use[command.worker] = command.kv_use
    known = state.workers.get(command.worker)
    reported = WorkerSet(
        command.worker, command.url, command.model, command.slots, command.context_tokens, command.bytes_per_token,
        command.service_per_s, "draining" if command.draining else "serving",
        capabilities=command.capabilities, models=command.models,
        loaded_at=_loaded_at(known, command, state.at), expected_per_s=_expected_rates(state, command),
    )  # fmt: skip
    if known is None:
        decision.add(reported)
    elif (merged := _merge_report(known.config, reported)) != known.config:
        decision.add(merged)
    worker = state.workers[command.worker]
    held = tuple(f"{call.id}#{call.attempt}" for call in worker.running.values())
    return Attempts(command.worker, state.position, held, need=state.need())


def rested(decision: Decision) -> None:
    """Let workers serve again after their rest or retirement."""
    for worker in list(decision.state.workers.values()):
        if worker.config.state in FOR_A_TIME and worker.config.until <= decision.state.at:
            decision.add(worker.config._replace(state="serving", until=0.0))


def silent_worker(decision: Decision, worker_id: str) -> None:
    """Give no new work to a worker that sends no heartbeats."""
    worker = decision.state.workers.get(worker_id)
    if worker is not None and worker.config.state != "silent":
        decision.add(worker.config._replace(state="silent", until=0.0))


def retire(decision: Decision, command: Retire) -> None:
    """Give a worker no new work for RETIRE_S, or give it new work again. A draining or silent worker gets none
    anyway."""
    worker = decision.state.workers.get(command.worker)
    if worker is None:
        return
    state = worker.config.state
    if command.is_over and state == "retiring":
        decision.add(worker.config._replace(state="serving", until=0.0))
    elif not command.is_over and (state in USABLE or state == "retiring"):
        decision.add(worker.config._replace(state="retiring", until=decision.state.at + RETIRE_S))


def _merge_report(old: WorkerSet, new: WorkerSet) -> WorkerSet:
    """Return the reported worker. Keep the log's measurements if they are similar, and the worker's rest or
    retirement."""
    if _is_near(new.service_per_s, old.service_per_s):
        new = new._replace(service_per_s=old.service_per_s)
    if _alike(old.models, new.models):
        new = new._replace(models=old.models)
    if len(old.expected_per_s) == len(new.expected_per_s) and all(
        map(_is_near, new.expected_per_s, old.expected_per_s)
    ):
        new = new._replace(expected_per_s=old.expected_per_s)
    if old.state in FOR_A_TIME and new.state == "serving":
        new = new._replace(state=old.state, until=old.until)
    return new


def _expected_rates(state: State, command: Report) -> tuple[float, ...]:
    """Return the expected capacity of each reported model. A log in format OLDEST cannot say it.

    A number that no worker can have is unknown.
    """
    if (state.log_order and state.format == OLDEST) or len(command.expected_per_s) != len(command.models):
        return ()
    return tuple(rate if 0 < rate <= CAPACITY_MAX else 0.0 for rate in command.expected_per_s)


def _loaded_at(known: Worker | None, command: Report, now: float) -> float:
    """Return since when the worker has its model; 0 if it keeps its model for ever."""
    if not command.models:
        return 0.0
    return known.config.loaded_at if known is not None and known.model == command.model else now


def _alike(old: Sequence[LoadableModel], new: Sequence[LoadableModel]) -> bool:
    """Return whether two lists of models differ in nothing but measurements, and in those a little."""
    return len(old) == len(new) and all(
        was._replace(swap_s=0.0, service_per_s=0.0) == now._replace(swap_s=0.0, service_per_s=0.0)
        and _is_near(now.swap_s, was.swap_s)
        and _is_near(now.service_per_s, was.service_per_s)
        for was, now in zip(old, new, strict=True)
    )


def _is_near(new: float, old: float) -> bool:
    return abs(new - old) <= _CHANGE * old
