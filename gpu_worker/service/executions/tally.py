"""Counts what a worker did since it was last asked, over all tenants: for the metrics of an interval."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FIRST_TOKENS_MAX = 1000
"""So many times of first tokens are kept, the latest ones: enough for percentiles of a minute."""


@dataclass(eq=False)
class Tally:
    """`output_tokens`: generated. `failed`: requests that this worker answered with status 500."""

    output_tokens: int = 0
    failed: int = 0
    first_token_ms: deque[float] = field(default_factory=lambda: deque(maxlen=FIRST_TOKENS_MAX))
    """The times from the arrival of an order to its first token, in milliseconds."""

    def take(self) -> Tally:
        """Return the counts, and begin again at zero."""
        taken = Tally(self.output_tokens, self.failed, self.first_token_ms)
        self.output_tokens, self.failed = 0, 0
        self.first_token_ms = deque(maxlen=FIRST_TOKENS_MAX)
        return taken
