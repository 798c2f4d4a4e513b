"""A run in parts: each has a budget of seconds, and its results are on the screen and in a file before the next begins.

A part that raises is reported and the next one begins. A part that lasts longer than its budget is cut and keeps what
it has. A part is left out if less than LEAST of its budget is left of the run's time. Neither a cut nor a part left out
is a failure. The file is replaced as a whole at every change, so that it is valid JSON whenever the run ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

LEAST = 0.5


class Outcome(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CUT = "cut"
    LEFT_OUT = "left out"


class WrongResult(Exception):
    """The part found a wrong result."""


@dataclass(slots=True)
class PartResult:
    """`lines`: as printed. `figures`: the same, by name. `why`: the error, or why the part was cut or left out."""

    name: str
    outcome: Outcome = Outcome.RUNNING
    seconds: float = 0.0
    why: str = ""
    lines: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


class Report:
    """The results so far. `out`: the file that has them."""

    def __init__(self, out: Path, about: dict[str, Any]) -> None:
        self.about = about
        self.parts: list[PartResult] = []
        self.stopped = ""
        self._out = out

    def begin(self, name: str) -> None:
        self.parts.append(PartResult(name))
        _print(f"\n== {name}")
        self.save()

    def say(self, line: str) -> None:
        """Print a line of the current part's table, and keep it."""
        self.parts[-1].lines.append(line.rstrip())
        _print(line.rstrip())

    def record(self, name: str, value: Any) -> None:
        """Keep a figure of the current part."""
        self.parts[-1].figures[name] = value
        self.save()

    def end(self, outcome: Outcome, seconds: float, why: str = "") -> None:
        part = self.parts[-1]
        part.outcome, part.seconds, part.why = outcome, round(seconds, 3), why
        _print(f"-- {part.name}: {outcome}, {seconds:.1f} s" + (f"; {why}" if why else ""))
        self.save()

    def stop(self, why: str) -> None:
        """Note why the run ends now."""
        self.stopped = why
        if self.parts and self.parts[-1].outcome is Outcome.RUNNING:
            self.parts[-1].outcome, self.parts[-1].why = Outcome.CUT, why
        self.save()

    def save(self) -> None:
        self._out.parent.mkdir(parents=True, exist_ok=True)
        written = self._out.with_name(f"{self._out.name}.{os.getpid()}")
        content = {**self.about, "stopped": self.stopped, "parts": [asdict(part) for part in self.parts]}
        written.write_text(json.dumps(content, indent=1, default=str) + "\n", "utf-8")
        written.replace(self._out)

    @property
    def failed(self) -> bool:
        return any(part.outcome is Outcome.FAILED for part in self.parts)


@dataclass(frozen=True, slots=True)
class Part:
    """`work` reports to the report that is handed to it."""

    name: str
    budget_s: float
    work: Callable[[Report], Awaitable[None]]


def run_parts(
    parts: list[Part], report: Report, seconds: float, monotonic_s: Callable[[], float] = time.monotonic
) -> None:
    """Run the parts in turn, within `seconds` in all."""
    began_s = monotonic_s()
    for part in parts:
        part_began_s = monotonic_s()
        left_s = seconds - (part_began_s - began_s)
        report.begin(part.name)
        if left_s < LEAST * part.budget_s:
            why = f"{max(0.0, left_s):.0f} s are left, and the part may need {part.budget_s:.0f} s"
            report.end(Outcome.LEFT_OUT, 0.0, why)
            continue
        outcome, why = _run_part(part, report, min(part.budget_s, left_s))
        report.end(outcome, monotonic_s() - part_began_s, why)


def _run_part(part: Part, report: Report, limit_s: float) -> tuple[Outcome, str]:
    """Return how the part ended, and why unless it is done."""
    try:
        asyncio.run(_run_limited(part, report, limit_s))
    except _Cut:
        return Outcome.CUT, f"after its {limit_s:.0f} s"
    except WrongResult as wrong:
        return Outcome.FAILED, str(wrong)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return Outcome.FAILED, f"{type(error).__name__}: {error}"
    return Outcome.DONE, ""


class _Cut(Exception):
    pass


async def _run_limited(part: Part, report: Report, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s) as limit:
            await part.work(report)
    except TimeoutError:
        if limit.expired():
            raise _Cut from None
        raise


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
