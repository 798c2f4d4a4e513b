"""Patience follows the receipts: a busy host's leader is kept, a dead one is replaced at once. In virtual time."""

import asyncio

import pytest

from dispatcher.service.gate.presence import SILENT_S
from dispatcher.service.gate.process import HOLD_OFF_S, STILL_WRITES_S
from dispatcher.service.link.channel import PATIENCE_MAX_S, PATIENCE_S, SLOTS, TAIL_FACTOR, WINDOW_S, LinkPatience
from tests.support.world.processes import World, start_gates


def test_without_receipts_it_is_the_least() -> None:
    assert LinkPatience().seconds(5.0) == PATIENCE_S


@pytest.mark.parametrize(
    ("tail_s", "patience_s"),
    [
        (0.001, PATIENCE_S),
        (PATIENCE_S / TAIL_FACTOR, PATIENCE_S),
        (0.1, 0.1 * TAIL_FACTOR),
        (PATIENCE_S, PATIENCE_MAX_S),
        (9.0, PATIENCE_MAX_S),
    ],
)
def test_it_is_a_multiple_of_the_tail_within_its_bounds(tail_s: float, patience_s: float) -> None:
    patience = LinkPatience()
    for number in range(100):
        patience.took(tail_s if number == 50 else 0.0005, float(number))
    assert patience.seconds(100.0) == pytest.approx(patience_s)


def test_a_late_receipt_is_forgotten_after_the_window() -> None:
    patience = LinkPatience()
    patience.took(0.1, 0.0)
    for second in range(1, int(WINDOW_S)):
        patience.took(0.001, float(second))
        assert patience.seconds(float(second)) == pytest.approx(0.1 * TAIL_FACTOR)
    assert patience.seconds(WINDOW_S) == PATIENCE_S


def test_its_memory_is_bounded() -> None:
    patience = LinkPatience()
    for second in range(100_000):
        patience.took(0.001, float(second))
    assert len(patience._longest) == SLOTS


def test_a_silent_leader_is_replaced_before_its_clients_are_silent() -> None:
    assert PATIENCE_S < PATIENCE_MAX_S < min(SILENT_S, HOLD_OFF_S)


async def stop(world: World, name: str, seconds: float) -> None:
    """Let all processes of a host stop for so long, as a busy processor does, and then run for a second."""
    world.host(name).pause()
    await asyncio.sleep(seconds)
    world.host(name).resume()
    await asyncio.sleep(1.0)


async def fleet() -> World:
    world = World()
    await start_gates(world, "g1", "g2", "g3")
    await asyncio.sleep(6)
    return world


def takeovers(world: World) -> int:
    return sum(gate.takeovers for gate in world.gates.values())


async def test_stops_that_grow_from_short_ones_cause_no_takeover() -> None:
    world = await fleet()
    for seconds in (0.05, 0.2, 0.3, 0.6, 1.0, 1.5, 0.3, 1.9):
        await stop(world, "g1", seconds)
    assert (takeovers(world), world.leaders) == (1, ["g1"])


async def test_a_receipt_that_arrives_during_the_suspicion_ends_it() -> None:
    world = await fleet()
    await stop(world, "g1", PATIENCE_S + STILL_WRITES_S / 2)
    assert (takeovers(world), world.leaders) == (1, ["g1"])
    await stop(world, "g1", 1.0)
    assert (takeovers(world), world.leaders) == (1, ["g1"]), "and its time counts as one of the tail"


async def test_a_quiet_fleet_replaces_a_leader_that_stops_for_a_second() -> None:
    world = await fleet()
    world.host("g1").pause()
    await asyncio.sleep(PATIENCE_S + 0.15)
    assert takeovers(world) == 2


async def test_a_killed_leader_is_replaced_at_once_by_a_patient_heir() -> None:
    world = await fleet()
    for seconds in (0.05, 0.3, 1.0):
        await stop(world, "g1", seconds)
    heir = next(gate for gate in world.gates.values() if gate.rank == 0)
    assert heir._patience.seconds(world.clock.monotonic()) == PATIENCE_MAX_S
    world.host("g1").kill()
    await asyncio.sleep(0.1)
    assert heir.is_leader


async def test_a_patient_heir_replaces_a_leader_that_stays_silent() -> None:
    world = await fleet()
    for seconds in (0.05, 0.3, 1.0):
        await stop(world, "g1", seconds)
    world.host("g1").pause()
    await asyncio.sleep(PATIENCE_MAX_S + 0.2)
    assert takeovers(world) == 2


async def test_leadership_does_not_flap_between_hosts_that_stop_alike() -> None:
    """Each host stops for 0.7 s in turn. The first stop comes without a warning. After it, all know of such stops."""
    world = await fleet()
    for _ in range(10):
        for name in ("g1", "g2", "g3"):
            await stop(world, name, 0.7)
            await asyncio.sleep(HOLD_OFF_S)
    assert takeovers(world) <= 3
