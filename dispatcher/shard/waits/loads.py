"""When a model has slots again that no worker has now: the L of the announced waits (estimate.py).

If a worker is ordered to load the model, L is the rest of its drain, corrected by the drains seen, and of the load
(planning/load_rests.py). Else it is the rest of the model's absence (planning/absences.py). The prior of this is the
soonest time at which a plan may let a worker load it: after the rest that planning/fleet.py asks for, and a drain.
"""

from __future__ import annotations

from math import inf, isfinite

from dispatcher.policies.planning.absences import absence_rest
from dispatcher.policies.planning.fleet import DRAIN_S, SWAPS_SAVED_S, residency_s, rest_s
from dispatcher.policies.planning.load_rests import load_rest
from dispatcher.policies.planning.wait_ratios import Quantiles
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.waits.learned import Phase
from dispatcher.shard.waits.record import LoadTurn

UNKNOWN_S = 30.0
"""Until a model is loaded that no worker can load now."""
DECIDED_S = 1.0
"""Until a worker is ordered to load a missing model, half the time between two plans."""
TURNS_MOST = 8
"""So many workers are considered for a missing model: those that have had their models longest."""


def until_loaded(state: State, model: str) -> LoadTurn:
    """Return what the queues of a model without open slots wait for. It is found once for an entry."""
    record, key = state.waits, (state.position, state.at)
    if record.turns_of != key:
        record.turns_of, record.turns = key, {}
    turn = record.turns.get(model)
    if turn is None:
        turn = record.turns[model] = _find_turn(state, model)
    return turn


def _find_turn(state: State, model: str) -> LoadTurn:
    record = state.waits
    loading = [(_load_quantiles(state, worker), worker.name) for worker in state.tenures.loading(model)]
    if loading:
        rest, name = min(loading, key=lambda each: (each[0].p50, each[1]))
        return _turn(state, model, Phase.ORDERED, rest, state.workers[name])
    names = state.tenures.longest(model, TURNS_MOST)
    turns = [(_turn_in_s(state, state.workers[name], model), name) for name in names]
    soonest_s, name = min(turns, default=(inf, ""))
    known = record.models.get(model)
    rest = absence_rest(
        known.absences_s if known is not None else (),
        record.all.absences_s,
        state.at - record.missing.get(model, state.at),
        soonest_s if soonest_s < inf else UNKNOWN_S,
    )
    return _turn(state, model, Phase.MISSING, rest, state.workers.get(name))


def _turn(state: State, model: str, phase: Phase, in_s: Quantiles, worker: Worker | None) -> LoadTurn:
    if worker is None:
        return LoadTurn(phase, in_s, 1, 0.0)
    load = state.waits.loads.get(worker.name)
    slots = max(1, load.slots if load is not None else worker.slots)
    return LoadTurn(phase, in_s, slots, worker.capacity_with(model) / slots)


def _load_quantiles(state: State, worker: Worker) -> Quantiles:
    """Return the seconds until a worker has loaded the model that it is ordered to load."""
    swap_s, load = worker.swap_s.get(worker.load, 0.0), state.waits.loads.get(worker.name)
    if load is not None and load.empty_at is not None:
        return _load_rest(state, swap_s, state.at - load.empty_at)
    drain_s = _drain_s(state, worker)
    return Quantiles(*(drain_s + rest for rest in _load_rest(state, swap_s, 0.0)))


def _load_rest(state: State, swap_s: float, elapsed_s: float) -> Quantiles:
    return load_rest(state.waits.all.late_s, swap_s, elapsed_s, state.settings.heartbeat_s)


def _swap_s(state: State, worker: Worker, model: str) -> float:
    """Return the seconds from the end of a drain until the worker has the model; infinity if it cannot load it."""
    swap_s = worker.swap_s.get(model, inf)
    return _load_rest(state, swap_s, 0.0).p50 if swap_s < inf else inf


def _drain_s(state: State, worker: Worker) -> float:
    """Return the seconds until the worker's running calls have ended, corrected by the drains that were seen."""
    record = state.waits
    return min(DRAIN_S, record.expected_drain_s(worker) * record.all.drain_ratio.with_prior(1.0))


def _turn_in_s(state: State, worker: Worker, model: str) -> float:
    """Return the seconds until the worker has the model if it is ordered to load it as soon as it may; infinity if it
    cannot."""
    swap_s = _swap_s(state, worker, model)
    if not isfinite(swap_s) or not (worker.load or worker.config.state == "serving"):
        return inf
    if worker.load:
        return _load_quantiles(state, worker).p50 + rest_s(worker.swap_s.get(worker.load, 0.0), swap_s) + swap_s
    return max(DECIDED_S, _rest_left_s(state, worker, swap_s)) + _drain_s(state, worker) + swap_s


def _rest_left_s(state: State, worker: Worker, swap_s: float) -> float:
    """Return the seconds until a plan may swap the worker (planning/fleet.py, `rest_left_s`)."""
    if not worker.model:
        return 0.0
    since, is_waited_for = max(worker.config.loaded_at, worker.ordered_at), worker.model in state.waiting_models
    if worker.last_swap_s is None:
        return since + residency_s(swap_s, is_waited_for) - state.at
    if not is_waited_for:
        return worker.paid_until - SWAPS_SAVED_S - state.at
    return since + rest_s(worker.last_swap_s, swap_s) - state.at
