"""Accepts or refuses a call. A refusal is not a fact: it costs nothing, and a repetition of it is decided anew."""

from __future__ import annotations

import math

from dispatcher.model.call import CallTerms, made
from dispatcher.model.commands import Accept, Refused, parse_call_id
from dispatcher.model.facts import Accepted, Held, ProcessSet, TenantSet
from dispatcher.model.formats import OLDEST
from dispatcher.model.prefixes import KEY_CHARS, KEYS_MAX
from dispatcher.model.usage import HOUR_S
from dispatcher.policies.orders.queues import Clocks, Tenant
from dispatcher.policies.service import cache_discount
from dispatcher.policies.share_bounds import COST_MAX, clamp_burst, clamp_rate, clamp_weight, is_share_sound
from dispatcher.shard.fold import Decision
from dispatcher.shard.state.records import NO_PROCESS, NO_USAGE, Usage
from dispatcher.shard.state.state import State
from dispatcher.shard.waits.estimate import expected_wait

APPS_MAX = 100
"""The most applications of a tenant with usage of their own within an hour. A bound is needed because clients choose
the names, and the state keeps a row of usage for each until it is projected."""
USAGE_ROWS_MOST = 100_000
"""With more rows of usage in the state, no further application gets one of its own, of any tenant. A row is kept for an
hour or two, and 75,000 of them are projected in an hour (service/snapshots.py)."""
_DUE_LAST = 1e12
"""The priority of a call without an SLO class beside calls with due times, in Unix seconds."""
_RETRY_UNKNOWN_S = 5.0
"""The Retry-After while no worker has the model, or no throughput has been measured."""
_RETRY_MAX_S = 900.0


def accept(decision: Decision, command: Accept) -> Refused | None:
    """Accept the call, unless it was accepted before. Return the refusal, or None.

    Raises ValueError for a cost that no process computes.
    """
    state, terms = decision.state, command.terms
    if not 0 <= terms.cost <= COST_MAX:
        raise ValueError(f"a cost is between 0 and {COST_MAX:g}, not {terms.cost!r}")
    if command.id in state.calls or _was_accepted(state, command.id):
        _hold(decision, command)
        return None
    if not state.slots.has(terms.model):
        return Refused(command.id, "no_worker", "No worker serves this model at the moment.", _RETRY_UNKNOWN_S)
    tenant = _configure_tenant(decision, command)
    app, past = _app(state, terms)
    refused = (
        _queue_full(state, tenant, command)
        or _check_throttle(state, command, app)
        or _out_of_reach(state, tenant, command)
    )
    if refused is not None:
        return refused
    cost = terms.cost
    if past.cached_tokens:
        cost -= min(cost, _discount(state, terms, past))
    slack = state.order.slack
    deferred = terms.deferred and slack is not None
    clocks, priority = state.order.join(tenant, state.at, state.virtual_time, deferred=deferred)
    if slack is not None:
        priority = terms.due_at or _DUE_LAST
    keeps_prefix = state.settings.prefix_lead and state.format > OLDEST  # a row of OLDEST has no prefix
    prefix = terms.prefix[: KEYS_MAX * KEY_CHARS] if keeps_prefix else ""
    if cost != terms.cost or app != terms.app or deferred != terms.deferred or prefix != terms.prefix:
        terms = terms._replace(cost=cost, app=app, deferred=deferred, prefix=prefix)
    decision.add(made(Accepted, (command.id, command.floor, command.process, terms, priority, clocks)))
    return None


def _was_accepted(state: State, call_id: str) -> bool:
    """Return whether a call with this id was accepted before. The accepted numbers of its process show it."""
    name, sequence = parse_call_id(call_id)
    process = state.processes.get(name)
    return process is not None and (sequence < process.floor or sequence in process.accepted)


def _hold(decision: Decision, command: Accept) -> None:
    """Make the sender the holder of a durable call. If no process held the call, this may be its executor: then
    executors run, and the other calls without a holder get offers again."""
    state = decision.state
    call = state.calls.get(command.id)
    if call is None or not call.terms.durable or call.process == command.process:
        return
    if call.process == NO_PROCESS and state.processes[NO_PROCESS].silent:
        decision.add(ProcessSet(NO_PROCESS, "present"))
    decision.add(Held(call.id, command.process))


def _configure_tenant(decision: Decision, command: Accept) -> Tenant:
    """Return the tenant. Log the command's configuration if its version is newer; an older one, from a cache, is
    ignored.

    The process that sends the command clamps its share (operations/calls/call.py). An older one does not, and an older
    log may have a share outside the bounds: it is replaced.
    """
    name = command.terms.tenant
    tenant, config = decision.state.tenants.get(name), command.config
    if tenant is not None and tenant.config.version >= config.version:
        config = tenant.config
        if is_share_sound(config.weight, config.rate_per_s, config.burst):
            return tenant
    clocks = _clocks_before_change(decision.state, tenant)
    clamped = config._replace(
        weight=clamp_weight(config.weight),
        rate_per_s=clamp_rate(config.rate_per_s),
        burst=clamp_burst(config.burst),
    )
    decision.add(TenantSet(name, clamped, clocks))
    return decision.state.tenants[name]


def _clocks_before_change(state: State, tenant: Tenant | None) -> Clocks:
    """Return the tenant's clocks at this moment, computed with its old share."""
    if tenant is None or _is_fresh(state, tenant):
        return state.order.new_clocks
    return state.order.join(tenant, state.at, state.virtual_time)[0]


def _is_fresh(state: State, tenant: Tenant) -> bool:
    return not tenant.is_active and state.order.is_forgettable(tenant, state.at, state.virtual_time)


def _queue_full(state: State, tenant: Tenant, command: Accept) -> Refused | None:
    waiting, limit, model = tenant.waiting + tenant.suspended, tenant.config.waiting_max, command.terms.model
    if waiting < limit or (not waiting and state.slots.first(model) is not None):
        return None
    wait = expected_wait(state, tenant, model, max(1, waiting - limit + 1))
    after_s = _retry_after_s(wait.p90_s)
    message = (
        f"{waiting} of this tenant's requests are waiting already; its limit is {limit}. "
        f"Try again in about {after_s:.0f} s."
    )
    return Refused(command.id, "queue_full", message, after_s)


def _out_of_reach(state: State, tenant: Tenant, command: Accept) -> Refused | None:
    """Refuse a call with a deadline surely out of reach: nine of ten such calls would still wait when it passes.

    Only a measured and observed wait refuses (waits/estimate.py), and a call that finds a free slot is never refused.
    """
    model, deferred = command.terms.model, command.terms.deferred
    remaining_s = command.terms.deadline_at - state.at
    if not state.settings.refuses_late or not state.settings.announces_waits or not 0 < remaining_s < math.inf:
        return None
    if _drains_in(state, model, remaining_s):
        return None
    if state.slots.first(model) is not None:
        return None
    queue = tenant.queues.get((model, deferred))
    position = 1 + (queue.count if queue is not None else 0)
    wait = expected_wait(state, tenant, model, position, deferred=deferred)
    if wait.p10_s <= remaining_s or not state.waits.is_observed(model):
        return None
    after_s = _retry_after_s(wait.p50_s - remaining_s)
    message = (
        f"This request would wait about {wait.p50_s:.0f} s for its turn, and its deadline is in {remaining_s:.0f} s. "
        f"Send fewer requests at once, allow more time, or try again in about {after_s:.0f} s."
    )
    return Refused(command.id, "deadline_out_of_reach", message, after_s)


def _drains_in(state: State, model: str, seconds: float) -> bool:
    """Return whether all that waits for the model is served in this time, so that no queue's wait has to be found."""
    known = state.waits.models.get(model)
    if known is None or not known.pace.is_known:
        return True
    pace, slots = known.pace, state.slots.open_by_model.get(model, 0)
    ends_per_s = pace.ends / pace.slot_s * slots
    return slots > 0 and state.waiting_models[model] < ends_per_s * seconds


def _retry_after_s(wait_s: float) -> float:
    """Return whole seconds between 1 and _RETRY_MAX_S."""
    return float(min(_RETRY_MAX_S, max(1, math.ceil(min(wait_s, _RETRY_MAX_S)))))


def _app(state: State, terms: CallTerms) -> tuple[str, Usage]:
    """Return the call's application, and its usage in this hour, or else in the last.

    The application is "" if it is a new one and there is no room for it (APPS_MAX of the tenant in this hour,
    USAGE_ROWS_MOST).
    """
    tenant, app, hour, rows = terms.tenant, terms.app, int(state.at // HOUR_S), state.usage
    usage = rows.get((tenant, app, hour))
    if usage is None and (state.apps[tenant, hour] >= APPS_MAX or len(rows) >= USAGE_ROWS_MOST):
        app = ""
        usage = rows.get((tenant, app, hour))
    return app, usage or rows.get((tenant, app, hour - 1), NO_USAGE)


def _discount(state: State, terms: CallTerms, past: Usage) -> float:
    """Return what the call will cost less for cached input tokens, if as large a part of its input is cached as of the
    calls in `past`."""
    cached_tokens = int(terms.input_tokens * past.cached_tokens / past.input_tokens)
    return cache_discount(state.settings.service, cached_tokens, state.settings.cached_fraction)


def _is_saturated(state: State, model: str) -> bool:
    """Return whether the model has a serving worker, and all of them have at least `settings.saturated` of their KV
    blocks in use."""
    serving = [worker for worker in state.slots.of(model) if worker.config.state == "serving"]
    full = state.settings.saturated
    return bool(serving) and all(state.kv_use.get(worker.name, 0.0) >= full for worker in serving)


def _check_throttle(state: State, command: Accept, app: str) -> Refused | None:
    """Apply FairServe's rule (policies/throttling.py): refuse only while the fleet is saturated, and never within an
    interaction that has begun."""
    if state.throttle is None:
        return None
    terms = command.terms
    last_at = state.interactions.get((terms.tenant, terms.interaction), -math.inf)
    under_way = bool(terms.interaction) and last_at >= state.at - state.settings.interaction_kept_s
    found = state.throttle.check(
        terms.tenant, app, state.at, saturated=_is_saturated(state, terms.model), under_way=under_way
    )
    if found is None:
        return None
    what = "tenant" if found.limit == "user" else "application"
    message = (
        f"The service is overloaded, and this {what} is at its limit of {found.most} requests in a time window. "
        f"Try again in about {math.ceil(found.retry_after_s)} s."
    )
    return Refused(command.id, f"throttled_{found.limit}", message, found.retry_after_s)
