"""Records the log probability of each drawn token and of the most likely ones, for the sequences with the field.

The log probabilities are the model's own: before bias, penalties, temperature and filters. They are recorded between
two processors: the first of the batch sees the model's scores, the last sees the scores whose arg max is drawn.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch

from gpu_worker.engines.transformers.row_processors import RowProcessor
from gpu_worker.engines.transformers.sampling_fields import Sampling


class TokenLogprobs(NamedTuple):
    logprob: float
    top: list[tuple[int, float]]
    """The most likely tokens and their natural log probabilities."""


class LogprobRecorder:
    """`first` and `last`: the processors. Use it in the engine thread only."""

    def __init__(self) -> None:
        self.first = _First(self)
        self.last = _Last(self)
        self.model_scores: dict[str, torch.Tensor] = {}
        self._found: dict[str, deque[TokenLogprobs]] = {}

    def note(self, sequence_id: str, found: TokenLogprobs) -> None:
        self._found.setdefault(sequence_id, deque()).append(found)

    def take(self, sequence_id: str) -> TokenLogprobs | None:
        """Return the oldest record of a sequence that is not taken yet."""
        found = self._found.get(sequence_id)
        return found.popleft() if found else None

    def forget(self, sequence_id: str) -> None:
        """Drop the records of a sequence that ended."""
        self._found.pop(sequence_id, None)


class _Recording(RowProcessor):
    def __init__(self, recorder: LogprobRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def wants(self, sampling: Sampling) -> bool:
        return sampling.logprobs is not None


class _First(_Recording):
    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        self._recorder.model_scores[state.request_id] = scores.log_softmax(-1)
        return scores


class _Last(_Recording):
    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        logprobs = self._recorder.model_scores.pop(state.request_id)
        best = logprobs.topk(min(sampling.logprobs or 0, logprobs.size(-1)))
        top = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        self._recorder.note(state.request_id, TokenLogprobs(float(logprobs[scores.argmax(-1)]), top))
        return scores
