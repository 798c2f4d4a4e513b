"""What an engine can support beside plain text. Pure.

A worker registers the capabilities of its engine. The gate refuses a field, by its name, if a worker of the model lacks
the capability that the field needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Capability(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    SAMPLING = "sampling"
    """`top_p`, `top_k`, `min_p`, the penalties and `logit_bias`."""
    CHOICES = "n"
    LOGPROBS = "logprobs"
    TOOLS = "tools"
    STRUCTURED = "structured"
    """`response_format` with a JSON schema, or with any JSON object."""
    IMAGES = "images"
    REASONING = "reasoning"
    LENGTH = "length"
    """`ignore_eos` and `min_tokens`."""
    TOKEN_IDS = "token_ids"  # noqa: S105
    """A prompt as token ids. (Inputs of embeddings may be token ids with EMBEDDINGS alone.)"""
    VLLM = "vllm"
    """The fields of vLLM's own request models."""


TEXT: frozenset[str] = frozenset({Capability.CHAT, Capability.COMPLETION})
"""What every engine that generates text supports."""


def common(registered: Iterable[Iterable[str]]) -> frozenset[str]:
    """Return what all workers support. A worker that registered nothing is of an older version and generates text."""
    each = [frozenset(names) or TEXT for names in registered]
    return frozenset.intersection(*each) if each else frozenset()
