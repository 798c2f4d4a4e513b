"""`make bundle` prints what the functions' asset weighs, and how long Python needs to import each handler.

The wheels are for Lambda's processor, so the handlers are imported from this environment, which has the same versions
(constraints/headgate.txt). A time is the best of _RUNS and holds for this machine only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from infra.bundle import DESCRIPTIONS, build

HANDLERS = (
    "functions.http_api.app",
    "functions.invoke.handler",
    "functions.result.handler",
    "functions.execute.handler",
    "functions.sweep.handler",
    "functions.admin.handler",
)
_RUNS, _HEAVIEST = 3, 5
_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)")


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def import_times_ms(module: str) -> dict[str, float]:
    """Return the milliseconds, with all that each imports, of the module and of what Python imports for it.

    Raises CalledProcessError if the module cannot be imported.
    """
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr  # noqa: S603
    return {name: int(total) / 1000 for _, total, _, name in _LINE.findall(lines)}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    root = Path(__file__).parents[1]
    built = build(root).path
    _say(
        f"bundle {size_mb(built):.1f} MB, of which descriptions of AWS services {size_mb(built / DESCRIPTIONS):.1f} MB"
    )
    for module in HANDLERS:
        times = min((import_times_ms(module) for _ in range(_RUNS)), key=lambda each: each[module])
        parts = {name: ms for name, ms in times.items() if "." not in name and not module.startswith(name)}
        heaviest = sorted(parts, key=parts.__getitem__, reverse=True)[:_HEAVIEST]
        listed = ", ".join(f"{name} {parts[name]:.0f}" for name in heaviest)
        _say(f"{module} {times[module]:.0f} ms ({listed})")


if __name__ == "__main__":
    main()
