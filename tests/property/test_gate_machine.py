"""The gate in every weather: what RELIABILITY promises of invocations, settlements, slots, credit and lines."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.old_invocation import ATTEMPTS_MAX, State
from dispatcher.old_operations.execute import Collected
from headgate.simulator.virtual_time import run
from tests.support.gate.memory_gate import POOL
from tests.support.gate.storm import SWEEP_S, TENANTS, WAITING_MAX, Storm, Weather, storm

SLACK_S = 35.0
"""After its deadline, or the calm: a lease's grace and margin, a sweep, and the retry of what was lost."""

weathers = st.builds(
    Weather,
    seed=st.integers(0, 2**32 - 1),
    processes=st.integers(1, 3),
    arrivals=st.integers(1, 25),
    table_fails=st.sampled_from([0.0, 0.01, 0.1, 0.4]),
    pause_s=st.sampled_from([0.0, 0.01, 0.3]),
    workers_fail=st.sampled_from([0.0, 0.2, 0.7]),
    callers_leave=st.sampled_from([0.0, 0.3]),
    worker_dies=st.booleans(),
)


async def weathered(weather: Weather) -> Storm:
    made = await storm(weather)
    await made.blow()
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(weathers)
@example(Weather(seed=1, processes=3, arrivals=40, table_fails=0.2, pause_s=0.1, workers_fail=0.3, callers_leave=0.3))
def test_the_invariants_hold_in_every_weather(weather: Weather) -> None:
    async def story() -> None:
        made = await weathered(weather)
        each_accepted_one_ends_once_and_in_time(made)
        no_more_attempts_than_allowed(made)
        await slots_are_free_and_never_shared(made)
        await the_ledger_is_exact(made)
        queues_stayed_bounded(made)
        the_sweep_reclaimed_nothing_without_need(made)
        answers_agree_with_the_store(made)

    run(story())


def each_accepted_one_ends_once_and_in_time(made: Storm) -> None:
    """I1, I2."""
    everything = made.store.everything()
    assert {(one.tenant, one.id) for one in everything} >= set(made.store.accepted)
    for one in everything:
        assert one.state.is_terminal, one
        assert len(made.store.ends[one.tenant, one.id]) == 1
        assert (one.ended_at or 0.0) <= max(one.deadline_at, made.calm_at) + SLACK_S + SWEEP_S
        assert one.body is None
        assert one.dispatched_at is None or one.dispatched_at < one.deadline_at


def no_more_attempts_than_allowed(made: Storm) -> None:
    assert all(one.attempt <= ATTEMPTS_MAX for one in made.store.everything())
    executions = [order.execution for _, order in made.gate.workers.orders]
    kept = {(one.tenant, one.id) for one in made.store.everything() if not one.detached}
    held = [name for name in executions if tuple(name.partition("#")[0].split("/")) in kept]
    assert len(held) == len(set(held)), "one attempt was executed twice"


async def slots_are_free_and_never_shared(made: Storm) -> None:
    """I3, and no caller waits without end.

    A duplicate message between an execution's end, or its failure, and the write that follows executes it twice (the
    promise is "at least once"): such an execution may still run when its slot goes to the next.
    """
    tried = made.gate.workers.tried
    assert [execution for execution in made.gate.workers.overlaps if tried[execution] == 1] == []
    await made.gate.at_rest()


async def the_ledger_is_exact(made: Storm) -> None:
    """I4."""
    for tenant in TENANTS:
        queue = (await made.store.snapshot(POOL, tenant)).queue
        assert queue.reserved == 0.0
        assert queue.spent == sum(one.served for one in made.store.everything() if one.tenant == tenant)


def queues_stayed_bounded(made: Storm) -> None:
    """I7."""
    assert made.store.longest_queue <= WAITING_MAX


def the_sweep_reclaimed_nothing_without_need(made: Storm) -> None:
    """The sweep repairs what a failing table or a dead worker leaves. In other weather each path ends by itself, and no
    live execution is reclaimed, however long it takes."""
    if made.weather.table_fails == 0.0 and not made.weather.worker_dies:
        assert made.reaped == 0
        if made.weather.workers_fail == 0.0 and not made.gate.workers.overlaps:
            assert all(one.attempt <= 1 for one in made.store.everything())
            failed = [one for one in made.store.everything() if one.state is State.FAILED]
            assert all((one.ended_at or 0.0) >= one.deadline_at for one in failed)


def answers_agree_with_the_store(made: Storm) -> None:
    for one in made.store.everything():
        for answer in made.answered[one.tenant, one.id]:
            if isinstance(answer, Collected):
                assert (one.state, answer.text) == (State.DONE, "xxx")
            elif answer is not None and not isinstance(answer, StoreUnavailable) and answer.status >= 500:
                assert one.state is not State.DONE, answer


@given(weathers)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_same_seed_is_the_same_storm(weather: Weather) -> None:
    def trace() -> list[tuple[float, str]]:
        made = run(weathered(weather))
        assert made.table is not None
        return made.table.trace

    assert trace() == trace()
