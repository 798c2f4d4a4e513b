"""Admission by the peak of future KV use, compared with playing the batch to its end step by step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.simulator.engines.kv_peak import KvPeak
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival


@dataclass
class Played:
    """A request in the batch: the tokens that it holds now, its first token included, and its remaining steps."""

    held: int
    left: int


def peak(batch: list[Played]) -> int:
    """Return the most tokens held at any step from now to the last end, just before the requests that end leave."""
    return max(
        sum(one.held + step for one in batch if one.left >= step) for step in range(max(one.left for one in batch) + 1)
    )


sizes = st.tuples(st.integers(1, 60), st.integers(0, 40))
moves = st.lists(st.one_of(sizes, st.integers(1, 30)), max_size=40)


def add_if_fits(pool: KvPeak, prompt: int, output: int) -> int | None:
    return pool.add_if_fits(SimRequest("", Arrival(0.0, "t", prompt, output), 0.0), prompt, output)


@given(st.integers(20, 300), moves)
def test_what_fits_is_what_never_fills_the_pool_when_played_out(
    pool_tokens: int, moves: list[int | tuple[int, int]]
) -> None:
    pool, batch = KvPeak(pool_tokens), list[Played]()
    for move in moves:
        if isinstance(move, int):
            steps = min(move, min((one.left for one in batch), default=0))
            pool.step += steps
            batch = [Played(one.held + steps, one.left - steps) for one in batch]
            ended = pool.take_ended()
            assert len(ended) == sum(one.left == 0 for one in batch)
            batch = [one for one in batch if one.left]
        else:
            prompt, output = move
            candidate = Played(prompt + 1, max(output, 1) - 1)
            added = add_if_fits(pool, prompt, output) is None
            assert added == (peak([*batch, candidate]) < pool_tokens)
            if added:
                batch.append(candidate)
        assert len(pool) == len(batch)
        if batch:
            assert pool.next_end - pool.step == min(one.left for one in batch)


@given(st.integers(2, 300), st.integers(1, 300), st.integers(0, 300))
def test_an_empty_pool_admits_what_is_smaller(pool_tokens: int, prompt: int, output: int) -> None:
    pool = KvPeak(pool_tokens)
    assert (add_if_fits(pool, prompt, output) is None) == (prompt + max(output, 1) < pool_tokens)


@settings(max_examples=1_000, deadline=None)
@given(st.integers(60, 200), st.lists(sizes, min_size=1, max_size=4), sizes)
def test_a_blocked_request_does_not_fit_for_so_many_steps(
    pool_tokens: int, running: list[tuple[int, int]], candidate: tuple[int, int]
) -> None:
    pool = KvPeak(pool_tokens)
    for prompt, output in running:
        add_if_fits(pool, prompt, output)
    blocked, next_end = add_if_fits(pool, *candidate), pool.next_end
    while blocked is not None and pool.step < min(blocked, next_end - 1):
        pool.step += 1
        assert add_if_fits(pool, *candidate) is not None


@given(st.integers(1, 60), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), min_size=1, max_size=12))
def test_each_tenant_in_the_batch_takes_its_room_once(room: int, arriving: list[tuple[str, int]]) -> None:
    pool, held, tenants = KvPeak(300, tenant_tokens=room), 0, set[str]()
    for tenant, prompt in arriving:
        request = SimRequest("", Arrival(0.0, tenant, prompt, 1), 0.0)
        fits = held + prompt + 1 + room * len(tenants | {tenant}) < 300
        assert (pool.add_if_fits(request, prompt, 1) is None) == fits
        if fits:
            held, tenants = held + prompt + 1, tenants | {tenant}
    pool.take_ended()
    assert (pool.add_if_fits(SimRequest("", Arrival(0.0, "z", 1, 1), 0.0), 298 - room, 1) is None) == (room < 298)
