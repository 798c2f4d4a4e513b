"""`python -m benchmarks [NAME …]`: run every benchmark in turn, or the named ones. Each prints its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HELPERS = frozenset(
    {
        "__init__",
        "__main__",
        "decision_ways",
        "http_load",
        "instant_worker",
        "memory_service",
        "poisoned_server",
        "process_cpu",
        "served_stack",
        "shard_traffic",
        "table_capacity",
        "vidur_side",
    }
)


def main() -> int:
    found = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)
    unknown = set(sys.argv[1:]) - set(found)
    if unknown:
        sys.stderr.write(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(found)}\n")
        return 2
    failed = [name for name in sys.argv[1:] or found if subprocess.call([sys.executable, "-m", f"benchmarks.{name}"])]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
