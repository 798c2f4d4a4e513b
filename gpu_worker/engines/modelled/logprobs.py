"""Placeholder log probabilities: the generated token has the probability 1/2, the next alternative 1/4, and so on.
Pure."""

from __future__ import annotations

from math import log

from gpu_worker.engines.modelled.answers import WORDS


def ranked(text: str, count: int) -> list[tuple[str, float]]:
    """Return `count` tokens with their log probabilities, the generated one first."""
    others = (f" {word}" for word in WORDS)
    return [(each, logprob(rank)) for rank, each in enumerate(list(dict.fromkeys((text, *others)))[:count])]


def logprob(rank: int = 0) -> float:
    return -(rank + 1) * log(2)
