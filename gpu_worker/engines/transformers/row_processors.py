"""Logits processors that change only the rows of the sequences with the field.

The order is bias, end tokens, penalties, temperature, filters (min_p, top_k, top_p), noise. The library passes a
processor one number for each row; these need more, so they keep the rows' states from `prepare_tensor_args` to the
call. Both run in the engine thread, one right after the other in each step: asynchronous batches and CUDA graphs are
off (manager.py).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from gpu_worker.engines.transformers.sampling_fields import Sampling


def sampling_in(state: Any) -> Sampling | None:
    """Return the sampling of the library's request state; None for greedy without any field."""
    found: Sampling | None = state.logit_processor_kwargs.get("sampling")
    return found


def generated_tokens(state: Any) -> list[int]:
    """Return the output so far. After a recomputation the library has its beginning among the initial tokens."""
    before = state.initial_tokens[state._true_initial_tokens :] if state._true_initial_tokens else []
    return [*before, *state.generated_tokens]


class RowProcessor(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Applies `row` to the scores of each sequence that `wants` it."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sampling": Sampling}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._rows: list[tuple[int, Any, Sampling]] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        states = [future.state for future in requests_with_new_token]
        found = ((at, state, sampling_in(state)) for at, state in enumerate(states))
        self._rows = [(at, state, each) for at, state, each in found if each is not None and self.wants(each)]
        return torch.zeros(len(states), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        if self._rows:
            scores = scores.clone()
        for at, state, sampling in self._rows:
            scores[at] = self.row(scores[at], state, sampling)
        return scores

    @abstractmethod
    def wants(self, sampling: Sampling) -> bool: ...

    @abstractmethod
    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        """Return the new scores of one sequence, with shape [vocabulary]."""


class LogitBias(RowProcessor):
    def wants(self, sampling: Sampling) -> bool:
        return bool(sampling.logit_bias)

    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        tokens, values = zip(*sampling.logit_bias, strict=True)
        bias = torch.tensor(values, dtype=scores.dtype, device=scores.device)
        return scores.index_add(0, torch.tensor(tokens, device=scores.device), bias)


class EndTokens(RowProcessor):
    """Lets no end token be drawn before `min_tokens`, or ever with `ignore_eos`."""

    def __init__(self, end_tokens: frozenset[int]) -> None:
        super().__init__()
        self._end_tokens = sorted(end_tokens)

    def wants(self, sampling: Sampling) -> bool:
        return bool(self._end_tokens) and (sampling.ignore_eos or sampling.min_tokens > 0)

    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        if sampling.ignore_eos or len(generated_tokens(state)) < sampling.min_tokens:
            scores[self._end_tokens] = float("-inf")
        return scores


class Penalties(RowProcessor):
    """OpenAI's presence and frequency penalties count the output; the repetition penalty also counts the prompt."""

    def wants(self, sampling: Sampling) -> bool:
        return sampling.penalizes

    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        if sampling.repetition_penalty != 1.0:
            tokens = torch.tensor([*state.initial_tokens, *state.generated_tokens], device=scores.device)
            seen = torch.zeros_like(scores, dtype=torch.bool)
            seen[tokens] = True
            penalty = sampling.repetition_penalty
            scores = torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)
        output = torch.tensor(generated_tokens(state), dtype=torch.int64, device=scores.device)
        counts = torch.bincount(output, minlength=scores.size(-1)).to(scores.dtype)
        return scores - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0).to(scores.dtype)


class Filters(RowProcessor):
    """min_p, then top_k, then top_p of what is left, after the temperature. The most likely token always stays."""

    def wants(self, sampling: Sampling) -> bool:
        return sampling.filters

    def row(self, scores: torch.Tensor, state: Any, sampling: Sampling) -> torch.Tensor:
        if sampling.min_p > 0.0:
            scores = _only(scores, scores.softmax(-1) >= sampling.min_p * scores.softmax(-1).max())
        if 0 < sampling.top_k < scores.size(-1):
            scores = _only(scores, scores >= scores.topk(sampling.top_k).values[-1])
        if sampling.top_p < 1.0:
            ordered, order = scores.softmax(-1).sort(descending=True)
            kept = ordered.cumsum(-1) - ordered < sampling.top_p
            kept[0] = True
            scores = _only(scores, torch.zeros_like(kept).scatter(0, order, kept))
        return scores


def _only(scores: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~kept, float("-inf"))
