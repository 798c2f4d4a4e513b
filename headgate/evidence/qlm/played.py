"""What the sections of the chapter share: runs of planners on scenes, and how their figures are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from dispatcher.policies.planning.groups import DELTA
from headgate.evidence.document.sections import Check, Setting
from headgate.simulator.fleet.spec import FleetSpec
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.sources import Workload

K = TypeVar("K")
PLANNERS = ("round-robin", "fcfs", "edf", "static", "shepherd", "qlm", "plan")


def played(
    setting: Setting, scenes: Mapping[K, tuple[Workload, FleetSpec]], planners: Iterable[str]
) -> dict[tuple[K, str], Run]:
    """Run each planner on each scene. Returns the runs by scene and planner."""
    keys = [(scene, planner) for scene in scenes for planner in planners]
    return dict(
        zip(keys, setting.map(simulate, [fleet_spec(*scenes[scene], name) for scene, name in keys]), strict=True)
    )


def fleet_spec(workload: Workload, fleet: FleetSpec, planner: str, *, delta: int = DELTA) -> RunSpec:
    return RunSpec(workload, "fcfs", fleet, planner=planner, delta=delta)


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def at_least(claim: str, least: float, found: Sequence[float]) -> Check:
    """Check that every part is at least `least`."""
    return Check(claim, min(found) >= least, ", ".join(percent(part) for part in found))


def times(claim: str, least: float, ours: Run, theirs: Run) -> Check:
    """Check that our throughput is at least `least` times theirs."""
    ratio = ours.requests_per_s / theirs.requests_per_s
    return Check(claim, ratio >= least, _ratio(ratio, ours, theirs))


def missed(claim: str, reason: str, ours: Run, theirs: Run) -> Check:
    """Report a ratio of throughputs that is below the claim, with the reason and no verdict."""
    ratio = ours.requests_per_s / theirs.requests_per_s
    return Check(claim, None, f"{_ratio(ratio, ours, theirs)}. {reason}")


def _ratio(ratio: float, ours: Run, theirs: Run) -> str:
    return f"{ratio:.2f} times: {ours.requests_per_s:.2f} against {theirs.requests_per_s:.2f} requests/s"
