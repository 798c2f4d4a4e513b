"""Turns the answer to an embeddings request into engine events: one Token for each input. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from gpu_worker.engines.interface import EngineEvent, Finished, Started, Token
from gpu_worker.engines.openai.counts import Counts, is_count
from gpu_worker.engines.openai.errors import error_of_fault
from gpu_worker.engines.openai.normal.faults import fault_in_chunk
from gpu_worker.engines.openai.normal.usage import find_usage
from gpu_worker.engines.openai.normal.values import parse_json, refuse_constant
from gpu_worker.engines.openai.sse import Nonsense


def embedding_events(data: bytes, counts: Counts) -> Iterator[EngineEvent]:
    """Yield the events of the whole answer. Raises EngineError, or Nonsense if an embedding is missing or malformed."""
    answer = parse_json(data, refuse_constant)  # no number stands for one that an embedding lacks
    if not answer.get("data") and (fault := fault_in_chunk(answer)) is not None:
        raise error_of_fault(fault)
    found = _by_input(answer.get("data"), counts.choices)
    if (usage := find_usage(answer, [])) is not None:
        counts.report_input(usage)
    yield Started(counts.input_tokens)
    for index in range(counts.choices):
        yield Token("", 0, index, {"embedding": found[index]})
    yield Finished("stop", counts.input_tokens, 0)


def _by_input(items: Any, inputs: int) -> dict[int, Any]:
    if not isinstance(items, list) or len(items) != inputs or not all(isinstance(each, dict) for each in items):
        raise Nonsense(f"there is not one embedding for each of {inputs} inputs")
    indices = [each.get("index", position) for position, each in enumerate(items)]
    if not all(is_count(index, inputs - 1) for index in indices) or len(set(indices)) != inputs:
        raise Nonsense("the embeddings are not numbered as their inputs")
    found = {index: each.get("embedding") for index, each in zip(indices, items, strict=True)}
    if not all(map(_is_embedding, found.values())):
        raise Nonsense("an embedding is malformed")
    return found


def _is_embedding(value: Any) -> bool:
    """Return whether the value is a base64 text, or a list of finite numbers."""
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and isfinite(value))
