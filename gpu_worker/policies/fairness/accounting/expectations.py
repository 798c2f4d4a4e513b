"""The usual lengths of a request, by application and stage of an interaction, learned from requests that ended.

Source: FairServe, section 4.3 ("the expectation of the number of input, system, and output tokens respectively for the
app a at stage j of an interaction", "calculated based on analysis on historical data").

Deviations: the paper has this history before it starts; here the means are learned while requests end. Until a stage
has an ended request, the mean of its application is used; then the mean of all requests; for the very first request,
PRIOR. After MEMORY requests a mean gives each new request the weight 1 / MEMORY, so that it follows an application
that changes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MEMORY = 1_000
"""Requests over which a mean is taken; the influence of older requests fades."""

STAGES_KEPT_MAX = 10_000
"""Means that are remembered. Beyond it, the mean that was updated the longest ago is dropped."""


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Lengths of a request in tokens. `input_tokens`: the input without the system prompt."""

    input_tokens: float
    system_tokens: float
    output_tokens: float


PRIOR = RequestLengths(256, 0, 256)


@dataclass(slots=True)
class _Mean:
    lengths: RequestLengths
    seen: int = 0

    def learn(self, new: RequestLengths) -> None:
        self.seen = min(self.seen + 1, MEMORY)
        old, part = self.lengths, 1 / self.seen
        self.lengths = RequestLengths(
            old.input_tokens + part * (new.input_tokens - old.input_tokens),
            old.system_tokens + part * (new.system_tokens - old.system_tokens),
            old.output_tokens + part * (new.output_tokens - old.output_tokens),
        )


class Expectations:
    """Mean lengths by application and stage."""

    def __init__(self) -> None:
        self._all = _Mean(PRIOR)
        self._means: OrderedDict[tuple[str, int | None], _Mean] = OrderedDict()
        """The mean lengths by application and stage; the stage None stands for all stages of the application."""

    def of(self, app: str, stage: int) -> RequestLengths:
        """Return the expected lengths of a request."""
        mean = self._means.get((app, stage)) or self._means.get((app, None)) or self._all
        return mean.lengths

    def learn(self, app: str, stage: int, lengths: RequestLengths) -> None:
        """Add the true lengths of a request that ended."""
        self._all.learn(lengths)
        for key in ((app, stage), (app, None)):
            if key not in self._means:
                self._means[key] = _Mean(lengths)
            self._means[key].learn(lengths)
            self._means.move_to_end(key)
        while len(self._means) > STAGES_KEPT_MAX:
            self._means.popitem(last=False)
