"""The log probabilities of one generated token in OpenAI's forms. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ranked = Sequence[tuple[str, float]]
"""Texts of tokens and their natural log probabilities, the most likely first."""


def chat_form(text: str, logprob: float, top: Ranked) -> dict[str, Any]:
    """Return the `logprobs` of a chat's choice."""
    alternatives = [_entry(each, value) for each, value in top]
    return {"content": [{**_entry(text, logprob), "top_logprobs": alternatives}], "refusal": None}


def completion_form(text: str, logprob: float, top: Ranked, offset: int) -> dict[str, Any]:
    """Return the `logprobs` of a completion's choice. `offset`: characters of the answer before this token."""
    alternatives = {**dict(reversed(top)), text: logprob}
    return {"tokens": [text], "token_logprobs": [logprob], "top_logprobs": [alternatives], "text_offset": [offset]}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
