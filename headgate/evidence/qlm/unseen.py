"""Three scenes that were fixed, with their claims, before they were run: the planner was not tuned on them.

The forecast of the planner was chosen on the other scenes of this chapter.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.scenes import (
    MISTRAL,
    SMALL,
    VICUNA,
    RequestStream,
    at_least,
    fleet,
    loadables,
    percent,
    played,
    workload,
)
from headgate.simulator.fleet.spec import FleetSpec, WorkerSpec
from headgate.simulator.run import Run
from headgate.workloads.sources import Workload

_SWAP_S = 3.0
_IN_TIME = 0.95
_PLANNERS = ("static", "qlm", "plan")

_PHASE_S, _CHAT_PER_S, _NIGHT = 120.0, 24.0, 3000
_THREE = {f"model-{number}": (MISTRAL[0], _SWAP_S) for number in range(1, 4)}


def _rotation() -> tuple[Workload, FleetSpec]:
    """A chat of 24 interactive requests/s that moves from model to model every two minutes; beside it 3,000 deferred
    requests that wait from the start for the third model. Three workers serve 60 requests/s."""
    chat = [
        RequestStream("chat", model, "interactive", round(_CHAT_PER_S * _PHASE_S), _CHAT_PER_S, _PHASE_S * number)
        for number, model in enumerate(_THREE)
    ]
    night = RequestStream("night", "model-3", "batch", _NIGHT, 0.0)
    return workload("rotation", [*chat, night]), fleet(3, _THREE)


_SIX = {f"model-{number}": (MISTRAL[0], _SWAP_S) for number in range(1, 7)}
_NEIGHBOURS_S, _HEAVY_PER_S, _LIGHT_PER_S = 180.0, 99.0, 5.0
_LIGHT = ("light-1", "light-2", "light-3")


def _neighbours() -> tuple[Workload, FleetSpec]:
    """A tenant that sends 99 requests/s for three models, beside three tenants that each send 5 a second for a model of
    their own. All are of the class normal and have weight 1. Four workers serve 80 requests/s."""
    names = list(_SIX)
    per_model = _HEAVY_PER_S / 3
    heavy = [
        RequestStream("heavy", model, "normal", round(per_model * _NEIGHBOURS_S), per_model) for model in names[:3]
    ]
    light = [
        RequestStream(tenant, model, "normal", round(_LIGHT_PER_S * _NEIGHBOURS_S), _LIGHT_PER_S)
        for tenant, model in zip(_LIGHT, names[3:], strict=True)
    ]
    return workload("neighbours", [*heavy, *light]), fleet(4, _SIX)


_KINDS_S, _SMALL_PER_S, _LARGE_PER_S = 300.0, 8.0, 3.0


def _two_kinds() -> tuple[Workload, FleetSpec]:
    """A small model that three A10Gs and two A100s can load, and a large one for the A100s only, at about two thirds of
    what they serve. Class normal."""
    on_a10 = loadables({"small": (SMALL[0], _SWAP_S)})
    on_a100 = loadables({"small": (MISTRAL[0], _SWAP_S), "large": (VICUNA[0], _SWAP_S)})
    workers = [WorkerSpec(f"a10-{number}", "a10", on_a10, "small") for number in range(1, 4)]
    workers += [WorkerSpec(f"a100-{number}", "a100", on_a100, "small") for number in range(1, 3)]
    streams = [
        RequestStream("one", "small", "normal", round(_SMALL_PER_S * _KINDS_S), _SMALL_PER_S),
        RequestStream("two", "large", "normal", round(_LARGE_PER_S * _KINDS_S), _LARGE_PER_S),
    ]
    return workload("two kinds", streams), FleetSpec(workers)


_SCENES: dict[str, Callable[[], tuple[Workload, FleetSpec]]] = {
    "rotation": _rotation,
    "neighbours": _neighbours,
    "two kinds": _two_kinds,
}


@experiment("qlm-unseen", "Three scenes that were fixed before they were run", "beyond QLM's evaluation")
def unseen(setting: Setting) -> Section:
    runs = played(setting, {name: make() for name, make in _SCENES.items()}, _PLANNERS)
    rows: list[tuple[Cell, ...]] = [
        (scene, tenant, *(percent(runs[scene, name].tenants[tenant].in_time) for name in _PLANNERS))
        for scene in _SCENES
        for tenant in sorted(runs[scene, "plan"].tenants)
    ]
    return Section(
        text=(
            "The planner's forecast was chosen on the scenes above. These scenes and claims were written "
            "down first, and then run. `rotation`: a chat that moves from model to model every two minutes, beside "
            "3,000 deferred requests. `neighbours`: three tenants within their shares, each with a model of its own, "
            "beside one that sends more than the fleet serves. `two kinds`: a small model for all workers and a large "
            "one for two of five.",
        ),
        tables=[Table("In time", ("scene", "tenant", *_PLANNERS), rows)],
        checks=[
            Check(
                "rotation: the chat is at least 95 % in time, and all deferred requests are too",
                _in_time(runs, "rotation", "chat") >= _IN_TIME and _in_time(runs, "rotation", "night") == 1.0,
                f"{percent(_in_time(runs, 'rotation', 'chat'))} and {percent(_in_time(runs, 'rotation', 'night'))}",
            ),
            Check(
                "neighbours: each tenant within its share is at least 95 % in time",
                min(_in_time(runs, "neighbours", tenant) for tenant in _LIGHT) >= _IN_TIME,
                ", ".join(percent(_in_time(runs, "neighbours", tenant)) for tenant in _LIGHT),
                "most late requests are of the start, when two of these three models are loaded nowhere and nothing is "
                "forecast yet",
            ),
            at_least("two kinds: at least 95 % in time", _IN_TIME, [runs["two kinds", "plan"].all.in_time]),
        ],
    )


def _in_time(runs: dict[tuple[str, str], Run], scene: str, tenant: str) -> float:
    return runs[scene, "plan"].tenants[tenant].in_time
