"""The pause before a restart grows while the process keeps ending, up to a bound."""

from __future__ import annotations

from headgate.serve.server import FIRST_S, MOST_S, STEADY_S, Restarts


def test_the_pause_doubles_up_to_its_bound() -> None:
    restarts, now, delays = Restarts(), 0.0, []
    for _ in range(10):
        restarts.started("worker-0", now)
        now += 1.0
        delays.append(restarts.delay("worker-0", now))
    assert delays[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert delays[-1] == MOST_S


def test_a_process_that_crashes_some_seconds_after_it_was_ready_is_started_ever_later() -> None:
    """For example an engine that its first calls crash: it costs every call that it begins an attempt."""
    restarts, now, delays = Restarts(), 0.0, []
    for _ in range(10):
        restarts.started("worker-0", now)
        now += 5.0
        delays.append(restarts.delay("worker-0", now))
        now += delays[-1] + 60.0  # until its model is loaded
    assert delays[-1] == MOST_S


def test_a_process_that_lived_long_starts_soon_again() -> None:
    restarts = Restarts()
    restarts.started("worker-0", 0.0)
    restarts.delay("worker-0", 1.0)
    restarts.delay("worker-0", 2.0)
    restarts.started("worker-0", 3.0)
    assert restarts.delay("worker-0", 3.0 + STEADY_S) == FIRST_S


def test_a_process_that_does_not_start_is_tried_ever_later() -> None:
    """Its last life does not count again, however long ago it ended."""
    restarts = Restarts()
    restarts.started("worker-0", 0.0)
    now, delays = 10 * STEADY_S, []
    for _ in range(10):
        delays.append(restarts.delay("worker-0", now))
        now += delays[-1]
    assert delays[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert delays[-1] == MOST_S


def test_each_process_has_its_own_pause() -> None:
    restarts = Restarts()
    assert [restarts.delay("front-0", 0.0) for _ in range(2)] == [FIRST_S, 2 * FIRST_S]
    assert restarts.delay("worker-0", 0.0) == FIRST_S
