"""What a request of an application usually is like at a stage of an interaction, learned from those that ended.

Source: FairServe, section 4.3 ("the expectation of the number of input, system, and output tokens respectively for the
app a at stage j of an interaction", "calculated based on analysis on historical data").

Deviations: the paper has a history before it starts. Here means are kept as requests end; a stage that nobody has
finished yet is expected to be like its application, an application like everything, and the first of all like PRIOR.
After MEMORY requests a mean forgets as fast as it learns, so that it follows an application that changes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MEMORY = 1_000
"""Requests that a mean is taken of; those before fade."""

STAGES_KEPT_MAX = 10_000
"""Applications and stages that are remembered; beyond it, those longest without a request that ended are forgotten."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens. `input_tokens`: what the user says, without the system's part."""

    input_tokens: float
    system_tokens: float
    output_tokens: float


PRIOR = Lengths(256, 0, 256)


@dataclass(slots=True)
class _Mean:
    lengths: Lengths
    seen: int = 0

    def learn(self, new: Lengths) -> None:
        self.seen = min(self.seen + 1, MEMORY)
        old, part = self.lengths, 1 / self.seen
        self.lengths = Lengths(
            old.input_tokens + part * (new.input_tokens - old.input_tokens),
            old.system_tokens + part * (new.system_tokens - old.system_tokens),
            old.output_tokens + part * (new.output_tokens - old.output_tokens),
        )


class Expectations:
    def __init__(self) -> None:
        self._all = _Mean(PRIOR)
        self._means: OrderedDict[tuple[str, int | None], _Mean] = OrderedDict()
        """By application and stage; stage None: whatever the stage."""

    def of(self, app: str, stage: int) -> Lengths:
        mean = self._means.get((app, stage)) or self._means.get((app, None)) or self._all
        return mean.lengths

    def learn(self, app: str, stage: int, lengths: Lengths) -> None:
        self._all.learn(lengths)
        for key in ((app, stage), (app, None)):
            if key not in self._means:
                self._means[key] = _Mean(lengths)
            self._means[key].learn(lengths)
            self._means.move_to_end(key)
        while len(self._means) > STAGES_KEPT_MAX:
            self._means.popitem(last=False)
