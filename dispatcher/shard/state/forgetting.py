"""Drops old parts of a shard's state: idle tenants, old processes, interactions, usage, and the ends of calls."""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.model.usage import HOUR_S
from dispatcher.shard.state.remembered import drop_old, mark_second
from dispatcher.shard.state.state import State

CLEANED_EVERY_S = 60.0
_HOURS_KEPT = 1
"""For this number of past hours, usage stays in the state, even if it is projected."""


def forget(state: State, before: float) -> None:
    """Drop the parts of the state that no decision depends on. All facts of the state must be written.

    `before` is the time of the entry before. The entries alone decide what is dropped, so that all copies of a shard
    drop the same. Some of the interactions, of the usage (remembered.py) and of the idle tenants are checked with each
    entry, and some of the old ends; everything else every minute. In a log of format 5 some of the idle tenants are
    checked every second, because the version that wrote it did so.
    """
    for name in state.grown:
        if (process := state.processes.get(name)) is not None:
            process.drop_accepted()
    state.grown.clear()
    drop_old(state.ends, state.at)
    is_minute = before // CLEANED_EVERY_S != state.at // CLEANED_EVERY_S
    _forget_interactions(state, is_minute=is_minute)
    _forget_usage(state, is_minute=is_minute)
    if state.format >= 6:
        _forget_idle(state, state.idle.due_parts(state.position, before, state.at))
    if int(before) == int(state.at):
        return
    mark_second(state.ends, state.at)
    if state.throttle is not None:
        state.throttle.trim()
    if state.format < 6:
        _forget_idle(state, state.idle.due_groups(before, state.at))
    if is_minute:
        _forget_old(state)


def _forget_idle(state: State, due: Iterable[set[str]]) -> None:
    """Forget idle tenants that behave like new ones."""
    tenants, is_forgettable, at, virtual_time = state.tenants, state.order.is_forgettable, state.at, state.virtual_time
    for names in due:
        for name in list(names) if names else ():
            if is_forgettable(tenants[name], at, virtual_time):
                tenants.pop(name).queues.clear()  # no reference cycle is left, which a collection would have to find
                state.waits.changed.add(name)
                names.discard(name)


def _forget_old(state: State) -> None:
    kept_s = state.settings.process_kept_s
    for name, process in list(state.processes.items()):
        if not process.calls and state.at - process.seen_at > kept_s:
            del state.processes[name]
    state.models_turned = {model: at for model, at in state.models_turned.items() if state.slots.has(model)}


def _forget_interactions(state: State, *, is_minute: bool) -> None:
    old = state.at - state.settings.interaction_kept_s
    for key in state.interactions.due(state.position, is_minute=is_minute):
        if state.interactions[key] < old:
            del state.interactions[key]


def _forget_usage(state: State, *, is_minute: bool) -> None:
    """Forget old totals that are projected. A total that is not projected stays, however old, so that none is lost."""
    oldest = int(state.at // HOUR_S) - _HOURS_KEPT
    saved = state.usage_saved
    for key in state.usage.due(state.position, is_minute=is_minute):
        tenant, _, hour = key
        if hour < oldest and state.usage[key].position < saved:
            del state.usage[key]
            state.apps[tenant, hour] -= 1
            if not state.apps[tenant, hour]:
                del state.apps[tenant, hour]
