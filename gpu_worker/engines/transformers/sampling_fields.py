"""The sampling fields of a request, as the logits processors of a batch read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from gpu_worker.engines.interface import EngineError

_LOGPROBS_MAX = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence draws its tokens. A field at its default changes nothing.

    `seed`: None for greedy. `top_k`: 0 for all tokens. `logit_bias`: pairs of token id and bias. `min_tokens`,
    `ignore_eos`: for how long no end token is drawn. `logprobs`: the number of alternatives whose log probabilities are
    reported with each token; None reports nothing.
    """

    temperature: float = 1.0
    seed: int | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None

    @property
    def penalizes(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def filters(self) -> bool:
        """Whether some tokens cannot be drawn. A greedy sequence draws the most likely one anyway."""
        return self.seed is not None and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


def sampling_of(
    body: Mapping[str, Any], *, temperature: float, seed: int | None, sequence_id: str, choice: int, vocabulary: int
) -> Sampling:
    """Return the sampling of one choice. `vocabulary`: the model's tokens.

    Without a seed, the sequence's id is the seed: unique, and without a random source. Choices after the first derive
    theirs, so that they differ. Raises EngineError for values that cannot be.
    """
    return Sampling(
        temperature=float(temperature),
        seed=None if temperature <= 0 else _seed(seed, sequence_id, choice),
        top_p=_number(body, "top_p", 1.0, low=0.0, high=1.0),
        top_k=max(0, int(_number(body, "top_k", 0, low=-1, high=2**31))),
        min_p=_number(body, "min_p", 0.0, low=0.0, high=1.0),
        presence_penalty=_number(body, "presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=_number(body, "frequency_penalty", 0.0, low=-2.0, high=2.0),
        repetition_penalty=_number(body, "repetition_penalty", 1.0, low=0.01, high=100.0),
        logit_bias=_logit_bias(body.get("logit_bias") or {}, vocabulary),
        min_tokens=min_tokens_of(body),
        ignore_eos=bool(body.get("ignore_eos")),
        logprobs=_logprobs(body),
    )


def min_tokens_of(body: Mapping[str, Any]) -> int:
    return int(_number(body, "min_tokens", 0, low=0, high=2**31))


def _seed(seed: int | None, sequence_id: str, choice: int) -> int:
    if seed is not None and choice == 0:
        return seed
    text = sequence_id if seed is None else f"{seed}/{choice}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _number(body: Mapping[str, Any], name: str, default: float, *, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise EngineError("invalid_request", f"`{name}` must be a number from {low} to {high}")
    return float(value)


def _logit_bias(bias: Any, vocabulary: int) -> tuple[tuple[int, float], ...]:
    try:
        pairs = tuple((int(token), float(value)) for token, value in bias.items())
    except (AttributeError, TypeError, ValueError):
        raise EngineError("invalid_request", "`logit_bias` must map token ids to numbers") from None
    if any(not 0 <= token < vocabulary or not abs(value) <= 100 for token, value in pairs):
        message = f"`logit_bias` must map token ids below {vocabulary} to numbers from -100 to 100"
        raise EngineError("invalid_request", message)
    return pairs


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives. A chat has a flag and `top_logprobs`, a completion has the number."""
    wanted = body.get("logprobs")
    if wanted is None or wanted is False:
        return None
    count = int(body.get("top_logprobs") or 0) if wanted is True else int(wanted)
    if not 0 <= count <= _LOGPROBS_MAX:
        raise EngineError("invalid_request", f"at most {_LOGPROBS_MAX} log probabilities of a token")
    return count
