"""How far the long tests go: `make test-long` runs them as far as they usually find something, `make test-deep` to the
end.

The last full run is in benchmarks/results/deep_tests.md.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("HEADGATE_TESTS") == "deep"


def at_depth(usual: int, deep: int) -> int:
    """Return how many examples, seeds or schedules a test runs."""
    return deep if DEEP else usual
