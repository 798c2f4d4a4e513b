"""The life of an invocation: every transition that there is, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dispatcher.model.old_invocation import (
    ATTEMPTS_MAX,
    IllegalTransition,
    Invocation,
    Result,
    Slot,
    State,
    dispatched,
    ended,
    may_retry,
    retried,
)
from dispatcher.policies.clocks import Charge

NEW = Invocation("a", "i", "a", "p", "m", "f", 100.0, 200.0, 9.0, 1, body="prompt")
CHARGE = Charge(9.0, False, 0.0, 1.0)
RUNNING = dispatched(NEW, Slot("w", 1), CHARGE, 101.0)
TERMINAL = [state for state in State if state.is_terminal]


def test_a_dispatch_is_the_next_attempt() -> None:
    assert (RUNNING.state, RUNNING.attempt, RUNNING.slot, RUNNING.charge) == (State.RUNNING, 1, Slot("w", 1), CHARGE)
    assert (RUNNING.dispatched_at, RUNNING.body) == (101.0, "prompt")


def test_a_retry_keeps_the_attempt_which_fences_the_lost_one() -> None:
    again = retried(RUNNING)
    assert (again.state, again.attempt, again.slot, again.charge) == (State.QUEUED, 1, None, None)
    assert again.queue_key == NEW.queue_key
    assert dispatched(again, Slot("v", 0), CHARGE, 102.0).attempt == 2


@pytest.mark.parametrize("state", TERMINAL)
def test_an_end_is_final_and_forgets_the_prompt(state: State) -> None:
    over = ended(RUNNING, state, 105.0, result=Result(200, "{}"), input_tokens=1, output_tokens=2, served=5.0)
    assert (over.state, over.ended_at, over.served, over.body) == (state, 105.0, 5.0, None)
    attempts: tuple[Callable[[], Invocation], ...] = (
        lambda: ended(over, State.DONE, 106.0),
        lambda: retried(over),
        lambda: dispatched(over, Slot("w", 0), CHARGE, 106.0),
    )
    for forbidden in attempts:
        with pytest.raises(IllegalTransition):
            forbidden()


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_only_a_terminal_state_is_an_end(state: State) -> None:
    with pytest.raises(IllegalTransition):
        ended(RUNNING, state, 105.0)


def test_what_runs_is_not_dispatched_and_what_waits_not_retried() -> None:
    with pytest.raises(IllegalTransition):
        dispatched(RUNNING, Slot("w", 0), CHARGE, 102.0)
    with pytest.raises(IllegalTransition):
        retried(NEW)


def test_which_executions_are_tried_again() -> None:
    assert may_retry(RUNNING, 199.9, holding=True)
    assert not may_retry(RUNNING, 199.9, holding=False)  # its caller's process is gone
    assert not may_retry(RUNNING, 200.0, holding=True)
    assert not may_retry(replace(RUNNING, attempt=ATTEMPTS_MAX), 150.0, holding=True)
    let_go = replace(RUNNING, detached=True)
    assert may_retry(let_go, 150.0, holding=False)
    assert not may_retry(replace(let_go, body=None), 150.0, holding=False)


def test_a_line_is_ordered_by_arrival_then_by_name() -> None:
    keys = [
        replace(NEW, arrived_at=at, id=name).queue_key
        for at, name in ((9.0, "z"), (99.9, "b"), (100.0, "a"), (100.0, "b"))
    ]
    assert keys == sorted(keys)
    assert len(set(keys)) == 4


def test_the_states_that_end() -> None:
    assert set(TERMINAL) == {State.DONE, State.FAILED, State.EXPIRED, State.CANCELLED}
