"""Encodes and decodes a shard's state. A snapshot and the later entries give the same shard as all entries.

A snapshot is one line of single values and then lines of rows. Each line is encoded by itself, so other threads can run
while a large snapshot is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Over
from dispatcher.model.errors import LogCorrupt, LogNewer
from dispatcher.model.facts import Planned, WorkerSet
from dispatcher.model.fleet import GroupPlan, LoadableModel, WorkerPlan
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.shard.codec import pack, unpack
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.state.records import Process, Usage, Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.waits.estimate import sum_changed

_TENANT = ("name", *TenantConfig._fields, "clocks", "spent")
_CALL = (
    "id", "model", "cost", "arrival", "priority", "attempt", "counted", "worker", "charge_in_profile",
    "charge_rate_per_s", "charge_weight", "cancelling", "arrived_at", "deadline_at", "dispatched_at", "durable",
    "process", "app", "interaction", "watchers", "lost_on", "slo_class", "due_at", "deferred", "input_tokens",
    "prefix",
)  # fmt: skip
"""The fields of a call and of its terms. Snapshots before format 5 lack those from slo_class on, and a call without a
prefix lacks the last one."""
_TERMS = frozenset(CallTerms._fields) - {"tenant"}
_USAGE_BEFORE = 5
"""The totals of a row of usage in format OLDEST."""
_WORKER_BEFORE = 12
"""The fields of a worker in format OLDEST."""


ROWS_A_LINE = 100


def dump(shard: Shard) -> bytes:
    state = shard.state
    values = {
        "format": state.format,
        "order": state.order.name,
        "position": state.position,
        "at": state.at,
        "leader": shard.leader,
        "epoch": shard.epoch,
        "virtual_time": state.virtual_time,
        "arrivals": state.arrivals,
        "behind": state.behind,
        "usage_saved": state.usage_saved,
        "throttle": state.throttle.dump() if state.throttle else None,
    }
    return pack(values, *(line for name, rows in _rows(state).items() for line in _lines(name, rows)))


def fields_of(data: bytes) -> dict[str, Any]:
    """Return the values and rows of a snapshot by name. Raises LogCorrupt."""
    values, *lines = unpack(data)
    if not isinstance(values, dict):
        raise LogCorrupt("these bytes are no snapshot")
    for name, rows in lines:
        values.setdefault(name, []).extend(rows)
    return values


def _lines(name: str, rows: list[Any]) -> Iterator[list[Any]]:
    """Return the rows in lines of at most ROWS_A_LINE; one line if there are none."""
    for start in range(0, max(1, len(rows)), ROWS_A_LINE):
        yield [name, rows[start : start + ROWS_A_LINE]]


def _rows(state: State) -> dict[str, list[Any]]:
    paid = [[call.id, call.swap_service] for call in state.calls.values() if call.swap_service]
    totals = _USAGE_BEFORE if state.format == OLDEST else len(Usage._fields)
    fields = _WORKER_BEFORE if state.format == OLDEST else len(WorkerSet._fields)
    return {
        "workers": [[list(worker.config[:fields]), worker.failures] for worker in state.workers.values()],
        "causes": [[name, worker.causes] for name, worker in state.workers.items() if worker.causes],
        "loads": [[w.name, w.load, w.ordered_at] for w in state.workers.values() if w.ordered_at],
        "paid": [[w.name, w.paid_until] for w in state.workers.values() if w.paid_until],
        "models_turned": [list(item) for item in state.models_turned.items()],
        "plan": [list(state.plan)] if state.plan is not None else [],
        "processes": [_process(name, process) for name, process in state.processes.items()],
        "unreached": [[name, process.unreached] for name, process in state.processes.items() if process.unreached],
        "tenants": [[each.name, *each.config, each.clocks, each.spent] for each in state.tenants.values()],
        "calls": [
            [call.tenant.name, *(getattr(call.terms if name in _TERMS else call, name) for name in _names_of(call))]
            for call in state.calls.values()
        ],
        "usage": [[*key, *row[:totals]] for key, row in state.usage.items()],
        "interactions": [[*key, at] for key, at in state.interactions.items()],
        "ends": [list(over) for over in state.ends.values()],
        **({"prefixes": state.holders.rows()} if len(state.holders) else {}),
        **({"swaps": paid} if paid else {}),
    }


def _names_of(call: Call) -> tuple[str, ...]:
    return _CALL if call.terms.prefix else _CALL[:-1]


def load(data: bytes, settings: ShardSettings) -> Shard:
    """Return the shard of a snapshot. Raises LogCorrupt for other bytes, a newer version, and another order."""
    try:
        fields = fields_of(data)
        if fields["format"] > NEWEST:
            raise LogNewer(f"the snapshot has format {fields['format']}, newer than {NEWEST}: update this process")
        if fields["order"] != settings.order:
            raise LogCorrupt(
                f"the shard's log was written under the order {fields['order']!r}, this process runs "
                f"{settings.order!r}: set the same order everywhere, or begin a new shard"
            )
        return _load_shard(fields, settings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LogCorrupt(f"the snapshot does not load: {error!r}") from None


def _load_shard(fields: dict[str, Any], settings: ShardSettings) -> Shard:
    """Return the shard. Further fields at the end of a row, of a later version, are left out."""
    shard = Shard(settings)
    state = shard.state
    state.format = max(OLDEST, fields["format"])
    shard.leader, shard.epoch = fields["leader"], fields["epoch"]
    state.log_order = fields["order"]
    state.position, state.at = fields["position"], fields["at"]
    state.virtual_time, state.arrivals, state.behind = fields["virtual_time"], fields["arrivals"], fields["behind"]
    state.usage_saved = int(fields["usage_saved"]) if fields["format"] > 1 else 0
    for config, failures, *_ in fields["workers"]:
        worker = Worker(_worker_set(*config[: len(WorkerSet._fields)]))
        worker.failures = failures
        state.set_worker(worker.config.worker, worker)
    for name, causes, *_ in fields.get("causes", ()):  # older snapshots have none
        state.workers[name].causes = tuple(causes)
    for name, model, at, *_ in fields.get("loads", ()):  # snapshots before format 5 have none
        state.set_load(state.workers[name], model, at)
    for name, until, *_ in fields.get("paid", ()):  # older snapshots have none
        state.workers[name].paid_until = until
    for model, at, *_ in fields.get("models_turned", ()):
        state.models_turned[model] = at
    for made_at, workers, groups, *_ in fields.get("plan", ()):
        state.plan = Planned(made_at, tuple(map(WorkerPlan.of, workers)), tuple(map(GroupPlan.of, groups)))
    for name, silent, floor, accepted, seen_at, *_ in fields["processes"]:
        process = state.processes[name] = Process(seen_at)
        process.silent, process.floor, process.accepted = silent, floor, set(accepted)
    for name, workers, *_ in fields.get("unreached", ()):  # older snapshots have none
        state.processes[name].unreached = tuple(workers)
    for values in fields["tenants"]:
        _add_tenant(state, _by_name(_TENANT, values, len(_TENANT)))
    for tenant, *values in fields["calls"]:
        least = len(_CALL) - 1 if fields["format"] >= 5 else _CALL.index("slo_class")
        _add_call(state, state.tenants[tenant], _by_name(_CALL, values, least))
    for call_id, service, *_ in fields.get("swaps", ()):  # older snapshots have none
        state.calls[call_id].swap_service = service
    for tenant, app, hour, *totals in fields["usage"]:
        state.usage[tenant, app, hour] = Usage(*totals[: len(Usage._fields)])
        state.apps[tenant, hour] += 1
        state.usage_changed = max(state.usage_changed, state.usage[tenant, app, hour].position)
    for tenant, interaction, at, *_ in fields["interactions"]:
        state.interactions[tenant, interaction] = at
    for over in fields["ends"]:
        state.ends[over[0]] = Over(*over[: len(Over._fields)])
    state.holders.load(fields.get("prefixes", ()))
    if state.throttle is not None and fields["throttle"] is not None:
        state.throttle.load(*fields["throttle"])
    state.flush()
    sum_changed(state)
    for name, worker in state.workers.items():
        state.waits.see_load(name, worker, state.at)
    return shard


def _by_name(names: tuple[str, ...], values: list[Any], least: int) -> dict[str, Any]:
    """Return a row's values by name. Raises ValueError for a row with fewer than `least` values."""
    if len(values) < least:
        raise ValueError(f"a row of {len(values)} values has too few")
    return dict(zip(names, values, strict=False))


def _worker_set(*fields: Any) -> WorkerSet:
    loaded = WorkerSet(*fields)
    models = tuple(map(LoadableModel.of, loaded.models))
    expected = tuple(loaded.expected_per_s)
    return loaded._replace(capabilities=tuple(loaded.capabilities), models=models, expected_per_s=expected)


def _add_tenant(state: State, values: dict[str, Any]) -> None:
    tenant = state.tenants[values["name"]] = Tenant(values["name"], tuple(values["clocks"]))
    tenant.config, tenant.spent = TenantConfig(*(values[name] for name in TenantConfig._fields)), values["spent"]
    state.touch(tenant)


def _add_call(state: State, tenant: Tenant, values: dict[str, Any]) -> None:
    terms = CallTerms(tenant.name, **{name: values.pop(name) for name in _TERMS if name in values})
    call = Call(values["id"], tenant, terms, values["arrival"], values["priority"])
    for name, value in values.items():
        setattr(call, name, tuple(value) if name == "watchers" else value)
    state.add_call(call)
    if call.worker:
        state.hold(call, state.workers[call.worker])
    elif state.processes[call.process].silent:
        state.suspend(call)
    else:
        state.enqueue(call)


def _process(name: str, process: Process) -> list[Any]:
    return [name, process.silent, process.floor, sorted(process.repeatable()), process.seen_at]
