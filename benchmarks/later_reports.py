"""Three fleets of later public reports: a rollout, machines that leave together, and a chat's small helper model.

They were written before a look at any planner's result of them, and no figure was changed after their first run.

    python -m benchmarks.later_reports
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.planner_dominance import PLANNERS, WITHOUT_PLAN, dominations, entitled_tenants, play_all, verdict
from benchmarks.planner_scenes import Scene, Stream, fleet, scene
from headgate.simulator.fleet.spec import WorkerOutage


def later_scenes(seed: int = 0) -> list[Scene]:
    """Return the scenes, each with its reports beside it."""
    steps = (0.0, 90.0, 180.0, 270.0, 360.0)
    parts = (0.01, 0.1, 0.5, 1.0)
    pair = fleet(4, {"gemma": 15.0, "qwen": 15.0}, loaded=("gemma", "gemma", "gemma", "qwen"))
    gone = tuple(WorkerOutage(worker, 60.0, 120.0) for worker in ("w1", "w2", "w3"))
    described = [
        # open-webui issues 5299 and 16525: after a chat's first answer a small model writes its title on the same GPU,
        # "slow to unload current model, load in task model, generate title, unload again".
        ("titles", fleet(1, {"chat": 10.0, "task": 3.0}),
              [Stream("people", "chat", 0.3, 300), Stream("titles", "task", 0.1, 305, 5, "normal", 12)]),
        # kserve issue 5725 (traffic is shifted to a new version by steps) and modelmesh issue 142 (a load takes 25 s):
        # 1, 10, 50 and 100 % of six requests a second, on three workers.
        ("canary", fleet(3, {"v1": 25.0, "v2": 25.0}, loaded=("v1",)),
              [*(Stream("old", "v1", 6 * (1 - part), end_s, start_s)
                 for part, start_s, end_s in zip(parts, steps, steps[1:], strict=False) if part < 1),
               *(Stream("new", "v2", 6 * part, end_s, start_s)
                 for part, start_s, end_s in zip(parts, steps, steps[1:], strict=False))]),
        # ray issue 46367: spot machines leave together and stay away. d-inference issue 1121: two models on a node, and
        # a rare request of the one starves the other.
        ("spot", replace(pair, failures=gone),
              [Stream("many", "gemma", 6, 300), Stream("few", "qwen", 0.05, 300)]),
    ]  # fmt: skip
    return [scene(*each, seed) for each in described]


def main() -> None:
    for each in later_scenes():
        entitled = entitled_tenants(each)
        runs = play_all(each, (*PLANNERS, WITHOUT_PLAN))
        print(f"{each.name}: {verdict(dominations(runs, entitled))}")
        for run in runs:
            print(run.line(entitled), flush=True)


if __name__ == "__main__":
    main()
