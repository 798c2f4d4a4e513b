"""Drops old parts of a shard's state: idle tenants, old processes, interactions, usage, and the ends of calls."""

from __future__ import annotations

from collections import Counter

from dispatcher.model.usage import HOUR_S
from dispatcher.shard.state import State

ENDS_KEPT = 4096
"""The number of ended calls with a remembered outcome. They cover more time than a failover takes."""
CLEANED_EVERY_S = 60.0
HOURS_KEPT = 1
"""For this number of past hours, usage stays in the state, even if it is projected."""


def forget(state: State, before: float) -> None:
    """Drop the parts of the state that no decision depends on. All facts of the state must be written.

    `before` is the time of the entry before. The entries alone decide what is dropped, so that all copies of a shard
    drop the same: every second some of the idle tenants are checked, and every minute everything else.
    """
    for name in state.grown:
        if (process := state.processes.get(name)) is not None:
            process.drop_accepted()
    state.grown.clear()
    while len(state.ends) > ENDS_KEPT:
        state.ends.popitem(last=False)
    if int(before) == int(state.at):
        return
    for names in state.idle.due(before, state.at):
        _forget_idle(state, names)
    if before // CLEANED_EVERY_S != state.at // CLEANED_EVERY_S:
        _forget_old(state)


def _forget_idle(state: State, names: set[str]) -> None:
    """Forget idle tenants that behave like new ones."""
    for name in list(names):
        if state.order.is_forgettable(state.tenants[name], state.at, state.virtual_time):
            state.tenants.pop(name).queues.clear()  # no reference cycle is left, which a collection would have to find
            state.waits.changed.add(name)
            names.discard(name)


def _forget_old(state: State) -> None:
    kept_s = state.settings.process_kept_s
    for name, process in list(state.processes.items()):
        if not process.calls and state.at - process.seen_at > kept_s:
            del state.processes[name]
    old = state.at - state.settings.interaction_kept_s
    state.interactions = {key: at for key, at in state.interactions.items() if at >= old}
    state.models_turned = {model: at for model, at in state.models_turned.items() if state.slots.has(model)}
    _forget_usage(state)


def _forget_usage(state: State) -> None:
    """Forget old totals that are projected. A total that is not projected stays, however old, so that none is lost."""
    oldest = int(state.at // HOUR_S) - HOURS_KEPT
    saved = state.usage_saved
    for key in [key for key, usage in state.usage.items() if key[2] < oldest and usage.position < saved]:
        del state.usage[key]
    state.apps = Counter((tenant, hour) for tenant, _, hour in state.usage)
