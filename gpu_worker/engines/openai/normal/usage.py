"""The usage that a server reports, under OpenAI's names and as whole numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_worker.engines.openai.normal.kinds import (
    CACHED_NAMES,
    INPUT_DETAILS,
    INPUT_NAMES,
    OUTPUT_DETAILS,
    OUTPUT_NAMES,
    REASONING_NAMES,
)


def find_usage(chunk: Mapping[str, Any], choices: list[Any]) -> dict[str, Any] | None:
    """Return the usage of a chunk: beside the choices, in `x_groq`, or in the only choice. Other fields stay."""
    usage = chunk.get("usage")
    if isinstance(usage, dict) and type(usage.get("prompt_tokens")) is type(usage.get("completion_tokens")) is int:
        return usage
    inner = chunk.get("x_groq")
    only = choices[0] if len(choices) == 1 else None
    for place in (chunk, inner, only):
        if isinstance(place, dict) and isinstance(usage := place.get("usage"), dict):
            return _normal(usage)
    return None


def find_cached(usage: Mapping[str, Any]) -> Any:
    """Return the input tokens that the server found in its cache, as it reports them; None if it reports none."""
    return _detail(usage, INPUT_DETAILS, CACHED_NAMES)


def find_reasoning(usage: Mapping[str, Any]) -> Any:
    """Return the output tokens that are reasoning, as the server reports them; None if it reports none."""
    return _detail(usage, OUTPUT_DETAILS, REASONING_NAMES)


def _detail(usage: Mapping[str, Any], places: tuple[str, ...], names: tuple[str, ...]) -> Any:
    inner = (usage[place] for place in places if isinstance(usage.get(place), dict))
    return next((found for each in (*inner, usage) if (found := _first(each, names)) is not None), None)


def _normal(usage: dict[str, Any]) -> dict[str, Any]:
    prompt, output = _first(usage, INPUT_NAMES), _first(usage, OUTPUT_NAMES)
    total = _whole(usage.get("total_tokens"))
    if output is None and type(total) is int and type(prompt) is int:
        output = total - prompt
    return {**usage, "prompt_tokens": prompt, "completion_tokens": output}


def _first(usage: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((_whole(usage[name]) for name in names if usage.get(name) is not None), None)


def _whole(value: Any) -> Any:
    """Return 7.0 as 7, and any other value as it is: counts.py ignores what is no count."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
