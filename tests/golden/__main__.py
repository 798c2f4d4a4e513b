"""Writes golden files anew: `python -m tests.golden [NAME…]` (without a name: all)."""

from __future__ import annotations

import sys

from tests.golden import FILES
from tests.golden.makers import MAKERS


def main(names: list[str]) -> int:
    for name in names or MAKERS:
        (FILES / name).write_text(MAKERS[name](), encoding="utf-8")
        sys.stdout.write(f"· {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
