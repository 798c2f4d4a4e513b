"""Admission by the peak of future KV use, against playing the batch out step by step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headgate.simulator.engines.kv_peak import KvPeak
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival


@dataclass
class Played:
    """Of a request in the batch: what it holds now, its first token included, and the steps that it still takes."""

    held: int
    left: int


def peak(batch: list[Played]) -> int:
    """Of all steps from now to the last end: what is held just before those leave that are done."""
    return max(
        sum(one.held + step for one in batch if one.left >= step) for step in range(max(one.left for one in batch) + 1)
    )


sizes = st.tuples(st.integers(1, 60), st.integers(0, 40))
moves = st.lists(st.one_of(sizes, st.integers(1, 30)), max_size=40)


@given(st.integers(20, 300), moves)
def test_what_fits_is_what_never_fills_the_pool_when_played_out(
    pool_tokens: int, moves: list[int | tuple[int, int]]
) -> None:
    room, batch = KvPeak(pool_tokens), list[Played]()
    for move in moves:
        if isinstance(move, int):
            steps = min(move, min((one.left for one in batch), default=0))
            room.step += steps
            batch = [Played(one.held + steps, one.left - steps) for one in batch]
            ended = room.take_ended()
            assert len(ended) == sum(one.left == 0 for one in batch)
            batch = [one for one in batch if one.left]
        else:
            prompt, output = move
            newcomer = Played(prompt + 1, max(output, 1) - 1)
            assert room.fits(prompt, output) == (peak([*batch, newcomer]) < pool_tokens)
            if room.fits(prompt, output):
                room.add(SimRequest("", Arrival(0.0, "t", prompt, output), 0.0), prompt, output)
                batch.append(newcomer)
        assert len(room) == len(batch)
        if batch:
            assert room.next_end - room.step == min(one.left for one in batch)


@given(st.integers(2, 300), st.integers(1, 300), st.integers(0, 300))
def test_an_empty_room_admits_whatever_it_could_ever_hold(pool_tokens: int, prompt: int, output: int) -> None:
    room = KvPeak(pool_tokens)
    assert room.fits(prompt, output) == room.could_hold(prompt, output)
