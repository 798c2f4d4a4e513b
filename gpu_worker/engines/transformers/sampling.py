"""Sampling inside one batch with a temperature and a seed for each request.

Continuous batching draws for the whole batch from one generator, so the output of a request would depend on the other
requests. Here the batch always takes the arg max, and the randomness is Gumbel noise: arg max of logits / T + G, with G
drawn from the standard Gumbel distribution for each token, is an exact sample of softmax(logits / T). The noise is a
hash of (seed of the request, number of the token, id in the vocabulary), so the same seed gives the same text in any
batch, at any place in it. Temperature 0 adds no noise and does not divide: exactly greedy.

Deviation from a true draw: the hash has 24 bits, so a token less likely than about 1 in 16 million is never drawn.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, ClassVar

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from gpu_worker.engines.transformers.row_processors import sampling_in
from gpu_worker.engines.transformers.sampling_fields import Sampling

_MASK = 0xFFFFFFFF
_UNIT = 2.0**-24


class PerRequestTemperature(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Divides each row by its request's temperature; a greedy row stays as it is."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sampling": Sampling}
    ignored_kwargs: tuple[str, ...] = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.copy_(torch.ones_like(int32_tensor, dtype=torch.float32).view(torch.int32))

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        values = [_divisor(sampling_in(future.state)) for future in requests_with_new_token]
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
    sampling = sampling_in(state)
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
