"""Why our scheduler ended a request, from the server's last chunk."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.engines.interface import EngineError
from gpu_worker.engines.vllm.protocol import check_end


def ended(finish_reason: str | None, stop_reason: Any) -> str:
    try:
        check_end({"index": 0, "finish_reason": finish_reason, "stop_reason": stop_reason})
    except EngineError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("preempted", "preempted"),
        ("preempted_too_often", "preempted_too_often"),
        ("refused", "rate_limit_exceeded"),
        ("too_large", "context_length_exceeded"),
        ("expired", "expired"),
        ("invalid", "generation_failed"),
    ],
)
def test_the_schedulers_reason_becomes_the_error(reason: str, code: str) -> None:
    assert ended("abort", f"headgate:{reason}") == code


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason"),
    [("stop", "headgate:refused"), ("stop", 7), ("length", None), (None, None), ("abort", None), ("abort", 7)],
)
def test_any_other_end_is_none_of_the_schedulers(finish_reason: str | None, stop_reason: Any) -> None:
    """A tenant's own stop string can be any text."""
    assert ended(finish_reason, stop_reason) == ""
