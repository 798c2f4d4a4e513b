"""Logits processors: in one batch each request has its own sampling, from temperature and seed to log probabilities.

The order is bias, end tokens, penalties, temperature, filters (min_p, top_k, top_p), noise. The library passes a
processor one number for each row; these need more, so they keep the rows' states from `prepare_tensor_args` to the
call. Both run in the engine thread, one right after the other in each step: asynchronous batches and CUDA graphs are
off (manager.py).

Temperature and seed: continuous batching draws for the whole batch from one generator, so the output of a request would
depend on the other requests. Here the batch always takes the arg max, and the randomness is Gumbel noise: arg max of
logits / T + G, with G drawn from the standard Gumbel distribution for each token, is an exact sample of softmax(logits
/ T). The noise is a hash of (seed of the request, number of the token, id in the vocabulary), so the same seed gives
the same text in any batch, at any place in it. Temperature 0 adds no noise and does not divide: exactly greedy.

Deviation from a true draw: the hash has 24 bits, so a token less likely than about 1 in 16 million is never drawn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from gpu_worker.engines.transformers.sampling_fields import Sampling


def _sampling_in(state: Any) -> Sampling | None:
    """Return the sampling of the library's request state; None for greedy without any field."""
    found: Sampling | None = state.logit_processor_kwargs.get("sampling")
    return found


def generated_tokens(state: Any) -> list[int]:
    """Return the output so far. After a recomputation the library has its beginning among the initial tokens."""
    before = state.initial_tokens[state._true_initial_tokens :] if state._true_initial_tokens else []
    return [*before, *state.generated_tokens]


class RowProcessor(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Changes the rows of the sequences with the field: applies `row` to the scores of each sequence that `wants`
    it."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sampling": Sampling}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._rows: list[tuple[int, Any, Sampling]] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        states = [future.state for future in requests_with_new_token]
        found = ((at, state, _sampling_in(state)) for at, state in enumerate(states))
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


class TokenLogprobs(NamedTuple):
    logprob: float
    top: list[tuple[int, float]]
    """The most likely tokens and their natural log probabilities."""


class LogprobRecorder:
    """Records the log probability of each drawn token and of the most likely ones, for the sequences with the field.

    The log probabilities are the model's own: before bias, penalties, temperature and filters. They are recorded
    between two processors: the first of the batch sees the model's scores, the last sees those of which the arg max is
    drawn. `first` and `last`: these processors. Use it in the engine thread only.
    """

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


_MASK = 0xFFFFFFFF
_UNIT = 2.0**-24


class PerRequestTemperature(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Divides each row by its request's temperature; a greedy row stays as it is."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sampling": Sampling}
    ignored_kwargs: tuple[str, ...] = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.copy_(torch.ones_like(int32_tensor, dtype=torch.float32).view(torch.int32))

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        values = [_divisor(_sampling_in(future.state)) for future in requests_with_new_token]
        return torch.tensor(values, dtype=torch.float32).view(torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        return scores / tensor_arg[: scores.size(0)].view(torch.float32).unsqueeze(-1)


class PerRequestNoise(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Adds to each row its request's Gumbel noise; none without a seed."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sampling": Sampling}
    ignored_kwargs: tuple[str, ...] = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        return torch.tensor([_key_of(future.state) for future in requests_with_new_token], dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        keys = tensor_arg[: scores.size(0)]
        rows = keys.nonzero().squeeze(-1)
        if rows.numel():
            scores = scores.index_add(0, rows, gumbel_noise(keys[rows], scores.size(-1)).to(scores.dtype))
        return scores


def _divisor(sampling: Sampling | None) -> float:
    """Return what divides the scores: the temperature, 1 for greedy."""
    return 1.0 if sampling is None or sampling.seed is None else sampling.temperature


def _key_of(state: Any) -> int:
    """Return 31 bits for this token of this request, never 0; 0 for a greedy request."""
    sampling = _sampling_in(state)
    if sampling is None or sampling.seed is None:
        return 0
    position = len(state.initial_tokens) + len(state.generated_tokens)
    digest = blake2b(f"{sampling.seed}:{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def gumbel_noise(keys: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return standard Gumbel noise, one row for each key: -log(-log(u)), u from a 32-bit finalizer over (token id,
    key)."""
    tokens = _mix(torch.arange(1, vocabulary + 1, dtype=torch.int64, device=keys.device))
    bits = _mix(tokens.unsqueeze(0) ^ keys.to(torch.int64).unsqueeze(-1))
    uniform = ((bits >> 8).to(torch.float32) + 0.5) * _UNIT
    return -torch.log(-torch.log(uniform.clamp(max=1.0 - _UNIT / 2)))


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """Apply MurmurHash3's 32-bit finalizer (public domain) in 64-bit integers: products wrap, the low half is right."""
    bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & _MASK
    bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & _MASK
    return bits ^ (bits >> 16)
