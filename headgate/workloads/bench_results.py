"""The results of `vllm bench serve --save-result --save-detailed` as calls: one object with a list for each figure.

    {"start_times": [5012.1, …], "input_lens": [120, …], "output_lens": [64, …], "ttfts": [0.2, …],
     "itls": [[0.02, …], …], "errors": ["", …]}

A call ends with the last of its gaps between tokens (`itls`). A request that failed, or has no tokens, is left out.
Every error is a TraceError.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, FiniteFloat, NonNegativeFloat, NonNegativeInt, ValidationError

from dispatcher.monitor.recording import RecordedCall
from headgate.workloads.arrivals import TraceError

_TENANT = "all"


class ReadCalls(NamedTuple):
    """The calls of a file in order of time, and how many others of it failed or have impossible figures."""

    calls: list[RecordedCall]
    left_out: int


class _BenchResult(BaseModel):
    """Times are in seconds. Only differences between `start_times` mean something."""

    model_id: str = ""
    start_times: list[FiniteFloat]
    input_lens: list[NonNegativeInt]
    output_lens: list[NonNegativeInt]
    ttfts: list[NonNegativeFloat]
    itls: list[list[NonNegativeFloat]]
    errors: list[str | None] = []


def is_bench_result(text: str) -> bool:
    """Return whether a file with this text is meant: OTLP has no such key."""
    return '"ttfts"' in text


def read_bench_result(path: Path, text: str) -> ReadCalls:
    """Return the calls in order of time. Raises TraceError, also if there is none."""
    try:
        results = _BenchResult.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TraceError(
            f"{path}: not the results of one run of vllm bench serve --save-result --save-detailed "
            f"({f'{place}: ' if place else ''}{first['msg']})"
        ) from None
    lists = (results.start_times, results.input_lens, results.output_lens, results.ttfts, results.itls)
    if len({len(each) for each in lists}) > 1:
        raise TraceError(f"{path}: start_times, input_lens, output_lens, ttfts and itls are not of the same length")
    errors = results.errors or [""] * len(results.ttfts)
    calls = [
        RecordedCall(begun, _TENANT, "", results.model_id, "", "", prompt, output, ttft, ttft + sum(gaps))
        for (begun, prompt, output, ttft, gaps), failed in zip(zip(*lists, strict=True), errors, strict=False)
        if output and not failed
    ]
    if not calls:
        raise TraceError(f"{path}: no request has tokens and ended without an error")
    return ReadCalls(sorted(calls), len(results.ttfts) - len(calls))
