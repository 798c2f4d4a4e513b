"""Plays thousands of random scenes once, and says where a simpler planner dominates headgate's own.

    python -m benchmarks.planner_survey [--random FROM:TO] [--processes N] [--resume] [--write FILE]
    python -m benchmarks.planner_survey --summary LINES [--write FILE]

A scene is judged by one draw of its arrivals and without a loss, as in planner_dominance.py: of thousands of scenes
each needs no draws of its own. A rival is played only as long as it may dominate. The result is the same.

Each scene is one line of a file under build/planner_survey/, written when it is known. The file's name is a digest of
the code that a verdict depends on (`code_digest`), so a file never has scenes of two planners. --resume goes on with
the file, also after a run that was killed. Without it the file begins anew. The summary has the number of dominated
scenes by what dominates, the points, and both by features of the scenes. It is written with the revision (--write).

The features: `swap` is the longest swap of a model in use; `load` is the demand over the fleet's service in the time of
the arrivals; `models` counts those in use beyond the workers; `begin` and `end` say whether a stream begins late or
ends early; `requests` is the least number of an entitled tenant.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.planner_dominance import PLANNERS, demand_and_service, dominations, entitled_tenants, play_all
from benchmarks.planner_draws import KNOWS_ARRIVALS, wilson
from benchmarks.planner_scenes import Scene, SceneShape, random_scene
from dispatcher.policies.percentiles import percentile

ROOT = Path(__file__).parents[1]
SCENES = "1000:21000"
_CODE = (
    "dispatcher/model", "dispatcher/policies", "dispatcher/shard", "gpu_worker/policies", "headgate/simulator",
    "headgate/workloads", "benchmarks/planner_dominance.py", "benchmarks/planner_scenes.py",
)  # fmt: skip
_NOT_CODE = "headgate/simulator/report"
Line = dict[str, Any]


def code_digest(root: Path = ROOT) -> str:
    """Return a name for the code that the verdicts depend on: planners, gate, engines, scenes and rules. Comments and
    docstrings change nothing."""
    digest = sha256()
    for name in _CODE:
        path = root / name
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.suffix in (".py", ".yaml") and not each.is_relative_to(root / _NOT_CODE):
                digest.update(f"{each.relative_to(root)}\0{_statements(each)}\0".encode())
    return digest.hexdigest()[:16]


def _statements(path: Path) -> str:
    text = path.read_text("utf-8")
    return ast.dump(_WithoutTexts().visit(ast.parse(text))) if path.suffix == ".py" else text


class _WithoutTexts(ast.NodeTransformer):
    """Leaves out the texts that stand alone: docstrings of modules, functions and attributes."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def judge_seed(seed: int) -> Line:
    """Play the random scene, and return its line."""
    shape = random_scene(seed)
    scene = shape.scene()
    entitled = entitled_tenants(scene)
    runs = play_all(scene, PLANNERS, only_failures=True)
    found = [[name, what, round(points, 2)] for name, what, points in dominations(runs, entitled)]
    own = next(run for run in runs if run.planner == "plan")
    worst_off = min((own.in_time[name] for name in entitled), default=1.0)
    features = features_of(shape, scene, entitled)
    return {"seed": seed, "dominated": found, "worst_off": round(worst_off, 4), "features": features}


def features_of(shape: SceneShape, scene: Scene, entitled: set[str]) -> dict[str, Any]:
    demand, service = demand_and_service(scene)
    models = {stream.model for stream in shape.streams}
    counts = Counter(each.tenant for each in scene.workload)
    least = min((counts[name] for name in entitled), default=0)
    return {
        "swap": max(shape.swap_s[model] for model in models),
        "workers": len(shape.kinds),
        "models": max(0, len(models) - len(shape.kinds)),
        "load": round(sum(demand.values()) / service, 4),
        "requests": least,
        "due": shape.due_s,
        "begin": "late" if any(stream.start_s > 0 for stream in shape.streams) else "at 0",
        "end": "early" if len({stream.end_s for stream in shape.streams}) > 1 else "at 90 s",
        "GPUs": "unlike" if len(set(shape.kinds)) > 1 else "alike",
        "weights": "unlike" if len(set(shape.weights.values())) > 1 else "alike",
    }


_BOUNDS: dict[str, Sequence[float]] = {"load": (0.05, 0.1, 0.2, 0.4, 0.8), "requests": (3, 10, 30, 100)}
_UNITS = {"swap": " s", "due": " s"}


def _group(line: Line, feature: str) -> str:
    """Return the name of the row that the scene is in."""
    value, bounds = line["features"][feature], _BOUNDS.get(feature)
    if bounds:
        return next((f"to {each:g}" for each in bounds if value <= each), f"over {bounds[-1]:g}")
    return value if isinstance(value, str) else f"{value:g}{_UNITS.get(feature, '')}"


def _groups(lines: Sequence[Line], feature: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(_group(line, feature), []).append(line)
    return {name: found[name] for name in sorted(found, key=_by_number)}


def read_lines(path: Path) -> list[Line]:
    """Read the lines. The last one may be cut, if the run was killed while it was written."""
    lines = path.read_text().split("\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]


def survey(seeds: Iterable[int], lines: Path, processes: int) -> Iterator[Line]:
    """Yield the line of each seed that the file does not have, and append it to the file."""
    known = read_lines(lines)
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("".join(json.dumps(line) + "\n" for line in known))
    seen = {line["seed"] for line in known}
    missing = [seed for seed in seeds if seed not in seen]
    with ProcessPoolExecutor(processes) as pool, lines.open("a") as file:
        for line in pool.map(judge_seed, missing, chunksize=4):
            file.write(json.dumps(line) + "\n")
            file.flush()
            yield line


def summary(lines: Sequence[Line], revision: str) -> str:
    """Return the result as a document."""
    dominated = [line for line in lines if line["dominated"]]
    seeds = [line["seed"] for line in lines]
    low, high = wilson(len(dominated), len(lines))
    points = sorted(points_of(line) for line in dominated)
    spread = ", ".join(f"{100 * part:g} %: {percentile(points, part) or 0.0:.0f}" for part in (0.25, 0.5, 0.75, 0.9, 1))
    by = Counter(" and ".join(sorted({name for name, _, _ in line["dominated"]})) for line in dominated)
    what = Counter(what for line in dominated for what in {what for _, what, _ in line["dominated"]})
    worst_off = 100 * fmean(line["worst_off"] for line in lines)
    text = [
        "# Where a simpler planner dominates the plan",
        "",
        f"{len(lines):,} random scenes, seeds {min(seeds)} to {max(seeds)}, one draw each, at revision {revision}. "
        "`benchmarks/planner_survey.py` writes this page and says what the columns mean.",
        "",
        f"- Dominated: {len(dominated)} ({len(dominated) / len(lines):.1%}; 95 %: {low:.1%} to {high:.1%}), by "
        f"{fmean(map(points_of, lines)):.2f} points in the mean over all scenes.",
        f"- By: {', '.join(f'{name} {count}' for name, count in by.most_common())}. "
        f"`{KNOWS_ARRIVALS}` knows all arrivals to come; it alone dominates {by[KNOWS_ARRIVALS]}.",
        f"- {what['tenant']} are dominated in a tenant and {what['worst']} in the worst.",
        f"- Points of the dominated scenes, by part of them: {spread}.",
        f"- The worst-off entitled tenant has {worst_off:.1f} % in time in the mean.",
        "",
        "`only static`: dominated by the partition alone. Points: the mean over all scenes of the row.",
        "",
        "| feature | scenes | dominated | 95 % | only static | points | worst-off |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for feature in lines[0]["features"]:
        text += [_row(f"{feature} {name}", each) for name, each in _groups(lines, feature).items()]
    text += ["", *_table(lines, "models", "swap")]
    worst = sorted(dominated, key=lambda line: -points_of(line))[:20]
    seeds_text = ", ".join(f"{line['seed']} ({points_of(line):.0f})" for line in worst)
    text += ["", f"The worst seeds, with their points: {seeds_text}."]
    return "\n".join(text) + "\n"


def points_of(line: Line) -> float:
    return max((points for _, _, points in line["dominated"]), default=0.0)


def _by_number(value: str) -> tuple[bool, float, str]:
    """Order `to 3`, `to 10`, `over 10`, and `0.5 s`, `2 s`."""
    numbers = [float(word) for word in value.split() if word.replace(".", "", 1).isdigit()]
    return value.startswith("over"), numbers[0] if numbers else 0.0, value


def _table(lines: Sequence[Line], down: str, across: str) -> list[str]:
    """Return the dominated scenes of all scenes, by two features."""
    columns = list(_groups(lines, across))
    table = [f"Dominated of all scenes, by {down} and {across}:", ""]
    table += [" | ".join((f"| {down}", *columns)) + " |", " | ".join(["| ---"] + ["---"] * len(columns)) + " |"]
    for name, each in _groups(lines, down).items():
        found = _groups(each, across)
        counts = [
            (sum(bool(line["dominated"]) for line in found.get(column, ())), len(found.get(column, ())))
            for column in columns
        ]
        table.append(" | ".join((f"| {name}", *(f"{part} of {whole}" for part, whole in counts))) + " |")
    return table


def _row(name: str, lines: Sequence[Line]) -> str:
    dominated = [line for line in lines if line["dominated"]]
    only = sum({name for name, _, _ in line["dominated"]} == {KNOWS_ARRIVALS} for line in dominated)
    low, high = wilson(len(dominated), len(lines))
    points, worst_off = fmean(map(points_of, lines)), 100 * fmean(line["worst_off"] for line in lines)
    return (
        f"| {name} | {len(lines)} | {len(dominated) / len(lines):.0%} | {low:.0%} to {high:.0%} | {only} | "
        f"{points:.2f} | {worst_off:.0f} % |"
    )


def _revision() -> str:
    command = ("git", "describe", "--always", "--dirty")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", default=SCENES, metavar="FROM:TO", help="seeds of random scenes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on with the file of this code")
    parser.add_argument("--summary", type=Path, metavar="LINES", help="play nothing, and summarize this file")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the summary; otherwise it is printed")
    parser.add_argument("--revision", help="of the code that played the scenes; by default that of this checkout")
    options = parser.parse_args()
    path = options.summary or ROOT / "build" / "planner_survey" / f"{code_digest()}.jsonl"
    if not options.summary:
        if not options.resume:
            path.unlink(missing_ok=True)
        first, last = map(int, options.random.split(":"))
        print(f"{path}: {len(read_lines(path))} scenes known", flush=True)
        for number, line in enumerate(survey(range(first, last), path, options.processes), 1):
            if line["dominated"]:
                said = "; ".join(f"{name} in the {what} by {points:.0f}" for name, what, points in line["dominated"])
                print(f"{number}: random {line['seed']} is dominated by {said}", flush=True)
    lines = read_lines(path)
    text = summary(lines, options.revision or _revision()) if lines else "no scene is known\n"
    if options.write:
        options.write.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
