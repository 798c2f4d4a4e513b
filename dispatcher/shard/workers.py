"""Decides the heartbeats of workers. A heartbeat becomes a fact only if it changes a value that decisions depend on."""

from __future__ import annotations

from dispatcher.model.commands import Attempts, Report
from dispatcher.model.facts import WorkerSet
from dispatcher.shard.decision import Decision

CAPACITY_CHANGE = 0.1
"""A measured capacity is logged if it differs from the logged one by more than this fraction."""


def report(decision: Decision, command: Report) -> Attempts:
    """Log the worker if it is new or changed, and answer with the attempts that the log holds for it."""
    state = decision.state
    state.kv_use[command.worker] = command.kv_use
    known = state.workers.get(command.worker)
    reported = WorkerSet(
        command.worker, command.url, command.model, command.slots, command.context_tokens, command.bytes_per_token,
        command.service_per_s, "draining" if command.draining else "serving",
        capabilities=command.capabilities,
    )  # fmt: skip
    if known is None:
        decision.add(reported)
    elif (merged := _merged(known.config, reported)) != known.config:
        decision.add(merged)
    worker = state.workers[command.worker]
    held = tuple(f"{call.id}#{call.attempt}" for call in worker.running.values())
    return Attempts(command.worker, state.position, held)


def rested(decision: Decision) -> None:
    """Let workers serve again if they have rested long enough."""
    for worker in list(decision.state.workers.values()):
        if worker.config.state == "resting" and worker.config.until <= decision.state.at:
            decision.add(worker.config._replace(state="serving", until=0.0))


def silent_worker(decision: Decision, worker_id: str) -> None:
    """Give no new work to a worker that sends no heartbeats."""
    worker = decision.state.workers.get(worker_id)
    if worker is not None and worker.config.state != "silent":
        decision.add(worker.config._replace(state="silent", until=0.0))


def _merged(old: WorkerSet, new: WorkerSet) -> WorkerSet:
    """Return the reported worker, but keep the log's capacity if it is similar, and the worker's rest."""
    if abs(new.service_per_s - old.service_per_s) <= CAPACITY_CHANGE * old.service_per_s:
        new = new._replace(service_per_s=old.service_per_s)
    if old.state == "resting" and new.state == "serving":
        new = new._replace(state=old.state, until=old.until)
    return new
