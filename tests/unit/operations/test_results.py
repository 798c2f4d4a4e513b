"""Kept ends of durable calls: which of them invite a new try under the same key."""

from __future__ import annotations

import pytest

from dispatcher.model.answers import error_body
from dispatcher.model.errors import AnsweredError, Preempted, WorkerFailed
from dispatcher.model.kept import StoredAnswer
from dispatcher.operations.calls.results import is_retryable


@pytest.mark.parametrize(("error", "expected"), [(Preempted("later", "preempted", 1.0), True), (WorkerFailed(), False)])
def test_an_error_with_a_time_to_wait_invites_a_new_try(error: AnsweredError, expected: bool) -> None:
    assert is_retryable(StoredAnswer("failed", 1, 0, 0, error_body(error), 0.0)) is expected


def test_an_end_without_a_kept_answer_invites_no_new_try() -> None:
    assert not is_retryable(StoredAnswer("failed", 1, 0, 0, "", 0.0))
