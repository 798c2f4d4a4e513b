"""A file of results: a line of JSON for each block of seeds that was run, so that a long run can be resumed.

A block counts for the code that it ran with. Several runs may append to one file.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CODE = ("dispatcher", "gpu_worker", "headgate/simulator", "tests/support/world")
"""The folders that decide what a seed does."""
ROOT = Path(__file__).parents[4]


@dataclass
class Block:
    """Seeds from `first` up to but not including `end`. `fronts`: 0 is the number that each seed draws."""

    commit: str
    code: str
    fronts: int
    first: int
    end: int
    entries: int = 0
    calls: int = 0
    seconds: float = 0.0
    """Of one process."""
    violations: list[dict[str, Any]] = field(default_factory=list)


def blocks_in(results: Path) -> Iterator[Block]:
    """Yield the blocks of the file, if it exists. A last line that was not written completely is ignored."""
    lines = results.read_text().split("\n")[:-1] if results.exists() else []
    for line in lines:
        yield Block(**json.loads(line))


def append(results: Path, block: Block) -> None:
    with results.open("a") as file:
        file.write(json.dumps(asdict(block)) + "\n")


def version() -> tuple[str, str]:
    """Return the commit, and a digest of the code that seeds run. Comments and docstrings do not count."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\n{_code_of(path)}\n".encode())
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"),  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return commit.stdout.strip(), digest.hexdigest()[:12]


def _code_of(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def table(blocks: Iterable[Block]) -> str:
    """Return what was run as a table in Markdown: a row for each version of the code and number of fronts."""
    runs: defaultdict[tuple[str, int], list[Block]] = defaultdict(list)
    for block in blocks:
        runs[block.code, block.fronts].append(block)
    lines = [
        "| commit | fronts | seeds | ranges | entries | calls | seeds/s of one process | violations |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (_, fronts), run in runs.items():
        seeds, seconds = sum(block.end - block.first for block in run), sum(block.seconds for block in run)
        found = [violation for block in run for violation in block.violations]
        cells = (
            run[-1].commit, fronts or "drawn", f"{seeds:,}", ", ".join(_ranges(run)),
            f"{sum(block.entries for block in run):,}", f"{sum(block.calls for block in run):,}",
            f"{seeds / max(seconds, 0.001):.1f}", f"{len(found)}{_named(found)}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _ranges(run: list[Block]) -> Iterator[str]:
    """Yield the seeds as ranges, those that touch each other as one."""
    ends: list[list[int]] = []
    for block in sorted(run, key=lambda block: block.first):
        if ends and ends[-1][1] == block.first:
            ends[-1][1] = block.end
        else:
            ends.append([block.first, block.end])
    return (f"{first}:{end}" for first, end in ends)


def _named(found: list[dict[str, Any]]) -> str:
    return "".join(f"; seed {each['seed']}: {each['oracle']}" for each in found)
