"""The evidence chapter: five rules of other gateways, and ours, with 1 to 64 processes that decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.rivals.deciders import DELAY_S, OURS
from headgate.evidence.rivals.policies import HALF_LIFE_S, QUANTUM_S, RIVALS, WEIGHTED, WINDOW_S
from headgate.evidence.rivals.scenes import EVEN, PROCESSES, SCENES, SKEWED, WORKERS, Job, play_job
from headgate.evidence.runs import within

_FRONTS = (*RIVALS, OURS)
_MOST = PROCESSES[-1]
_RATIO, _SHARE, _LIGHT, _BURST, _IDLE = "ratio", "least share", "light wait", "burst wait", "idle credit"
_FIGURES = {"four to one": (_RATIO,), "shares": (_SHARE, _LIGHT), "burst": (_BURST,), "idle credit": (_IDLE,)}
_TITLES = {
    _RATIO: "Weights 4 : 1, both always waiting: requests of premium for each of regular",
    _SHARE: "Four tenants that always wait: what the least served gets of its fair part",
    _LIGHT: "A tenant that needs a twentieth of the workers, beside these four: P90 wait (s)",
    _BURST: "Two tenants that need half of the workers, while a third sends 300 requests at once: P90 wait (s)",
    _IDLE: "A tenant that was alone for two minutes, and one that floods after a silence: what the first gets of its "
    "half in the next minute",
}
_REPORT = "ai-dynamo/dynamo issue 15187"

_Key = tuple[str, str, int, str]
"""A figure, a front, a number of processes and an ingress."""


@experiment(
    "rivals",
    "Other gateways' rules, with 1 to 64 processes that decide",
    f"beside other gateways: {_REPORT}, llm-d-router 1182 and 1534, kthena 265, SFQ (SIGCOMM 1996)",
)
def rivals(setting: Setting) -> Section:
    jobs = [
        Job(scene, front, processes, ingress)
        for scene in SCENES
        for front in (_FRONTS if scene != "four to one" else (*WEIGHTED, OURS))
        for processes in PROCESSES
        for ingress in (EVEN, SKEWED)
    ]
    found: dict[_Key, float] = {}
    for job, figures in zip(jobs, setting.map(play_job, jobs), strict=True):
        for name, figure in zip(_FIGURES[job.scene], figures, strict=True):
            found[name, job.front, job.processes, job.ingress] = figure
    return Section(
        text=_text(),
        tables=[_table(name, found) for name in _TITLES],
        checks=[*_check_report(found), *_ours(found), *_theirs(found), *_one_process(found)],
    )


def _text() -> tuple[str, ...]:
    return (
        f"{WORKERS} shared workers with one request each (one in the first table), one seed. A request enters at one "
        "process. *even*: at one drawn evenly. *skewed*: the flooding tenant's requests enter at all processes, and "
        "those of each other tenant at one (in the first table, each class has half of the processes). Each process "
        "has its own queues and its own counts, and a free worker goes to the processes with waiting requests in turn: "
        "that is our reading, since no process sees what waits at another.",
        "The rules are written anew from public texts (headgate/evidence/rivals/policies.py names each): round robin "
        f"over tenants; deficit round robin with a quantum of {QUANTUM_S:g} s; least attained service with a half-life "
        f"of {HALF_LIFE_S:g} s; least service in a window of {WINDOW_S:g} s; start-time fair queueing. Only the second "
        "and the fifth have weights, so only they are in the first table. Costs are known in advance, the best case "
        f"for all. `{OURS}` is the production's gate: every process decides on the same log. It pays "
        f"{DELAY_S * 1e3:g} ms for each request and each end, which the others do not.",
    )


def _table(name: str, found: Mapping[_Key, float]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (front, ingress, *(f"{found[name, front, processes, ingress]:.2f}" for processes in PROCESSES))
        for front in _FRONTS
        for ingress in (EVEN, SKEWED)
        if (name, front, 1, ingress) in found
    ]
    return Table(_TITLES[name], ("rule", "ingress", *map(_count_text, PROCESSES)), rows)


def _count_text(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _check_report(found: Mapping[_Key, float]) -> list[Check]:
    """Compare deficit round robin with the report's own figures."""
    rule = "deficit round robin"
    cases = ((1, EVEN, 255 / 65), (2, EVEN, 260 / 67), (2, SKEWED, 163 / 162))
    return [
        within(
            f"{rule}, {_count_text(count)}, {ingress} ingress, as reported:",
            found[_RATIO, rule, count, ingress],
            to,
            0.05,
        )
        for count, ingress, to in cases
    ]


def _of(
    found: Mapping[_Key, float], name: str, fronts: Iterable[str], counts: Iterable[int], *ingress: str
) -> dict[str, float]:
    """Return the figures, by a text that names their case."""
    listed = tuple(counts)
    return {
        f"{front}, {_count_text(count)}, {way}": found[name, front, count, way]
        for front in fronts
        for count in listed
        for way in ingress
    }


def _all(claim: str, figures: Mapping[str, float], holds: Callable[[float], bool], *, lowest: bool) -> Check:
    """Check every figure, and show the worst."""
    case, worst = (min if lowest else max)(figures.items(), key=lambda item: item[1])
    return Check(claim, all(map(holds, figures.values())), f"{'least' if lowest else 'most'}: {worst:.3g} ({case})")


def _ours(found: Mapping[_Key, float]) -> list[Check]:
    def figures(name: str) -> dict[str, float]:
        return _of(found, name, (OURS,), PROCESSES, EVEN, SKEWED)

    apart = {name: max(figures(name).values()) / min(figures(name).values()) - 1 for name in _TITLES}
    return [
        _all("one log: 4 : 1 within 3 % in every case", figures(_RATIO), lambda x: abs(x / 4 - 1) <= 0.03, lowest=True),
        _all(
            "one log: the least served gets 97 % of its part in every case",
            figures(_SHARE),
            lambda x: x >= 0.97,
            lowest=True,
        ),
        _all(
            "one log: the light tenant's P90 wait is at most 1.5 s", figures(_LIGHT), lambda x: x <= 1.5, lowest=False
        ),
        _all(
            "one log: the P90 wait during the burst is at most 1.5 s", figures(_BURST), lambda x: x <= 1.5, lowest=False
        ),
        _all(
            "one log: silence earns no credit: 95 % of its half in every case",
            figures(_IDLE),
            lambda x: x >= 0.95,
            lowest=True,
        ),
        _all(
            "one log: no figure depends on the processes or the ingress by more than 1 %",
            apart,
            lambda x: x <= 0.01,
            lowest=False,
        ),
    ]


def _theirs(found: Mapping[_Key, float]) -> list[Check]:
    return [
        _all(
            f"every rule in each of {_MOST} processes, skewed ingress: the least served gets less than half its part",
            _of(found, _SHARE, RIVALS, (_MOST,), SKEWED),
            lambda x: x < 0.5,
            lowest=False,
        ),
        _all(
            f"every such rule, {_MOST} processes, even: the light tenant waits five times as long as with one log",
            {
                case: wait / found[_LIGHT, OURS, _MOST, EVEN]
                for case, wait in _of(found, _LIGHT, RIVALS, (_MOST,), EVEN).items()
            },
            lambda x: x >= 5,
            lowest=True,
        ),
        _all(
            f"every such rule, {_MOST} processes: a burst delays the others for at least 10 s",
            _of(found, _BURST, RIVALS, (_MOST,), EVEN, SKEWED),
            lambda x: x >= 10,
            lowest=True,
        ),
    ]


def _one_process(found: Mapping[_Key, float]) -> list[Check]:
    """Check what the rules do with one process: what is the rule's fault, and what the processes'."""
    counted = ("attained service", "sliding window")
    return [
        _all(
            "one process: deficit round robin and start-time fair queueing give the least served 90 % of its part",
            _of(found, _SHARE, WEIGHTED, (1,), EVEN),
            lambda x: x >= 0.9,
            lowest=True,
        ),
        _all(
            "one process: round robin gives the tenant of short requests less than half of its part",
            _of(found, _SHARE, ("round robin",), (1,), EVEN),
            lambda x: x < 0.5,
            lowest=False,
        ),
        _all(
            "one process: rules that count past service leave a tenant that was busy less than half of its half",
            _of(found, _IDLE, counted, (1,), EVEN),
            lambda x: x < 0.5,
            lowest=False,
        ),
        _all(
            "one process: under these two, a burst after silence delays the others for at least 5 s",
            _of(found, _BURST, counted, (1,), EVEN),
            lambda x: x >= 5,
            lowest=True,
        ),
    ]
