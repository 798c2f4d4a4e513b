"""An error in a decision ends the command at fault, and no other: the replica stays usable, and agrees with the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import pytest

from dispatcher.model import commands
from dispatcher.model.commands import Accept, Cancel, Command, Done, End, Offer, Outcome, Over, Refused, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Accepted, Entry
from dispatcher.policies.orders.two_clocks import TwoClocks
from dispatcher.service.gate.faults import CREDIT_MAX, CREDIT_PER_S, EXTRA, SUSPECT_S
from dispatcher.service.gate.group_commit import GroupCommit
from dispatcher.service.gate.replica import Replica
from dispatcher.service.kept_answers import keep_outcomes
from dispatcher.shard import codec, fold, shard, steps
from dispatcher.shard.alone import with_fields
from dispatcher.shard.decide import decide
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump
from dispatcher.shard.state.forgetting import forget
from tests.support.world.processes import World, accept, end, report
from tests.support.world.virtual_time import START


def evil(number: int, **values: Any) -> Accept:
    return with_fields(accept(f"one-{number}", "one", START, "evil"), **values)


def good(number: int, **values: Any) -> Accept:
    return accept(f"one-{number}", "one", START, "good", **values)


async def joined(world: World, slots: int = 40) -> Replica:
    replica = world.replica("one")
    await replica.commit([report("w1", slots)])
    return replica


@pytest.fixture
async def one(world: World) -> Replica:
    """A replica with a worker."""
    return await joined(world)


def is_internal(outcome: Outcome) -> bool:
    return isinstance(outcome, Refused) and outcome.code == "internal_error"


async def agrees(world: World, one: Replica) -> bool:
    """Return whether the replica's state is that of the log, which every copy can fold."""
    await one.catch_up()
    return dump(one.shard) == dump((await world.folded()).shard)


ODD_FIELDS: list[dict[str, Any]] = [
    {"cost": nan}, {"cost": inf}, {"cost": -1.0}, {"cost": "9"}, {"cost": 10**400}, {"deadline_at": nan},
    {"deadline_at": -inf}, {"due_at": nan}, {"app": "half \ud83d"}, {"model": ["m"]}, {"id": "no number"}, {"id": None},
    {"input_tokens": {1, 2}}, {"interaction": b"bytes"}, {"tier": object()}, {"weight": "2"},
    {"waiting_max": None}, {"floor": "x"}, {"process": 7.5j},
]  # fmt: skip


def name_odd(odd: dict[str, Any]) -> str:
    """Return the same name in every process, which the text of an object is not."""
    ((field, value),) = odd.items()
    return f"{field}-{type(value).__name__}"


@pytest.mark.parametrize("odd", ODD_FIELDS, ids=name_odd)
async def test_one_odd_command_is_refused_and_all_others_are_served(
    world: World, one: Replica, odd: dict[str, Any]
) -> None:
    commands = [good(number) for number in range(1, 8)]
    commands.insert(3, evil(20, **odd))
    outcomes = (await one.commit(commands)).outcomes
    assert is_internal(outcomes.pop(3))
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Offer)] == [f"one-{n}" for n in range(1, 8)]
    assert await agrees(world, one)
    assert isinstance((await one.commit([good(9)])).outcomes[0], Offer)


ODD_REPORT: Any = report("w9")
ODD_END: Any = end("one-1", 1)
ODD: Any = commands
ODD_COMMANDS: list[Any] = [
    ODD_REPORT._replace(service_per_s=nan), ODD_REPORT._replace(service_per_s=-5.0), ODD_REPORT._replace(slots=0.5),
    ODD_REPORT._replace(service_per_s=5e-324), ODD_REPORT._replace(slots=10**30), ODD_REPORT._replace(slots=-3),
    ODD_REPORT._replace(models=("m",)), ODD_REPORT._replace(worker=None), ODD.Cancel("one-1", "half \ud83d"),
    ODD.Return("one-1", 1, {"no": "text"}), ODD_END._replace(input_tokens=nan), ODD.Saved("x"), ODD.Status([]),
    ODD_END._replace(output_tokens=-7), ODD_END._replace(output_tokens=10**40), ODD.Silent(5, False), ODD.Leave({}),
    ODD_END._replace(first_token_s=nan), ODD.Plan(nan, ("w",), ({},)), ODD.Gone([], True), "no command", None,
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD_COMMANDS, ids=lambda odd: str(odd)[:60])
async def test_an_odd_command_of_any_kind_harms_no_other(world: World, one: Replica, odd: Any) -> None:
    """A worker without a name was folded by the copy that decided it, and not by every other copy."""
    await one.commit([good(1), good(2)])
    outcomes = (await one.commit([good(3), odd, good(4)])).outcomes
    assert [type(outcomes[place]) for place in (0, 2)] == [Offer, Offer]
    assert isinstance((await one.commit([good(5)])).outcomes[0], Offer)
    assert await agrees(world, one)
    if isinstance(odd, End):
        assert isinstance(outcomes[1], Over), "an end that is never written holds its slot for ever"


async def test_several_tenants_with_odd_commands_are_all_found(
    world: World, one: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    now = world.clock.now()
    odd = [accept(f"one-{50 + number}", "one", now, f"evil{number}", cost=nan) for number in range(12)]
    outcomes = (await one.commit([*odd[:5], good(1), *odd[5:], good(2)])).outcomes
    assert [is_internal(outcome) for outcome in outcomes] == [True] * 5 + [False] + [True] * 7 + [False]
    ids = {outcome.message.split("fault ")[1].split(")")[0] for outcome in outcomes if isinstance(outcome, Refused)}
    lines = [each.getMessage() for each in caplog.records if "command refused" in each.getMessage()]
    assert len(ids) == len(lines) == one.faults.refused == 12
    assert all(any(f"fault={each} " in line for line in lines) for each in ids)


def raising(replaced: Callable[..., Any], when: Callable[..., bool], times: float = inf) -> Callable[..., Any]:
    left = [times]

    def replacement(*arguments: Any, **options: Any) -> Any:
        if left[0] > 0 and when(*arguments):
            left[0] -= 1
            raise RuntimeError("an error of the code")
        return replaced(*arguments, **options)

    return replacement


def is_evil(_state: object, fact: Accepted) -> bool:
    return fact.terms.tenant == "evil"


async def test_a_fact_that_does_not_fold_is_never_written(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.commit([good(1)])
    monkeypatch.setitem(fold.FOLDS, Accepted, raising(fold.FOLDS[Accepted], is_evil))
    outcomes = (await one.commit([good(2), evil(20), good(3)])).outcomes
    assert [is_internal(outcome) for outcome in outcomes] == [False, True, False]
    assert await agrees(world, one)


class ErrorWithoutText(RuntimeError):
    """It raises again when the line for the log is made."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [RuntimeError, ErrorWithoutText])
async def test_a_fact_that_fails_after_it_was_folded_in_part_leaves_nothing(
    world: World, one: Replica, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = steps.fold_accept

    def half(state: Any, fact: Accepted) -> None:
        accepted(state, fact)
        if fact.terms.tenant == "evil":
            state.arrivals += 5  # a change without an inverse
            raise error("half done")

    monkeypatch.setitem(fold.FOLDS, Accepted, half)
    outcomes = (await one.commit([good(2), evil(20)])).outcomes
    assert [is_internal(outcome) for outcome in outcomes] == [False, True]
    assert await agrees(world, one)


async def test_an_entry_that_does_not_decode_to_its_facts_is_never_written(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, size, tuples = codec._READERS["a"]
    lossy = [*tuples, (9, lambda app: app[:8])]
    monkeypatch.setitem(codec._READERS, "a", (kind, size, lossy))
    monkeypatch.setattr(codec, "_DECODED", set())
    commands = [evil(20, interaction="longer than eight"), good(1, interaction="short")]
    outcomes = (await one.commit(commands)).outcomes
    assert [is_internal(outcome) for outcome in outcomes] == [True, False]


async def test_a_rollback_that_raises_loads_the_state_again(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = world.clock.now()
    await one.commit([good(1)])
    before = one.shard
    monkeypatch.setattr(steps, "_undo_accept", raising(steps._undo_accept, lambda *_: True, 1))
    outcomes = (await one.commit([good(2), evil(20, deadline_at=inf)])).outcomes
    assert [is_internal(outcome) for outcome in outcomes] == [False, True]
    assert one.shard is not before
    assert world.clock.now() - now < 2.0
    assert await agrees(world, one)


async def test_an_error_after_the_append_loses_no_outcome(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "forget", raising(forget, lambda *_: True, 1))
    committed = await one.commit([good(1)])
    assert isinstance(committed.outcomes[0], Offer)
    assert [each.news.id for each in committed.deliveries] == ["one-1"]
    assert await agrees(world, one)


async def test_a_store_that_raises_an_unknown_error_is_unavailable(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(one._log, "append", raising(one._log.append, lambda *_: True))
        with pytest.raises(StoreUnavailable):
            await one.commit([good(1)])
    assert isinstance((await one.commit([good(1)])).outcomes[0], Offer)
    assert await agrees(world, one)


async def test_a_waiting_call_at_fault_ends_and_not_the_command_that_freed_its_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await joined(world, slots=1)
    outcomes = (await one.commit([good(1), evil(20), good(2)])).outcomes
    assert [type(outcome) for outcome in outcomes] == [Offer, Waiting, Waiting]
    monkeypatch.setattr(TwoClocks, "charge", raising(TwoClocks.charge, lambda _, tenant, *__: tenant.name == "evil"))
    committed = await one.commit([end("one-1", 1)])
    assert [type(outcome) for outcome in committed.outcomes] == [Over]
    news = {each.news.id: type(each.news) for each in committed.deliveries}
    assert news == {"one-1": Over, "one-20": Over, "one-2": Offer}
    assert await agrees(world, one)


async def test_an_error_of_every_decision_prevents_no_takeover(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(shard, "decide", raising(decide, lambda *_: True))
        assert await one.take_over("one:1", one.shard.epoch)
        assert all(map(is_internal, (await one.commit([good(1), good(2)])).outcomes))
    await world.clock.sleep(SUSPECT_S)
    assert isinstance((await one.commit([good(3)])).outcomes[0], Offer)
    assert await agrees(world, one)


async def test_a_takeover_that_cannot_be_encoded_is_tried_again(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DecisionFailed would end the gate process (found by the storm at seed 206)."""
    plain = codec.encode_entry
    monkeypatch.setattr("dispatcher.service.gate.deciding.encode_entry", raising(plain, lambda *_: True, 1))
    with pytest.raises(StoreUnavailable):
        await one.take_over("one:1", one.shard.epoch)
    assert await one.take_over("one:1", one.shard.epoch)
    assert await agrees(world, one)


async def test_an_error_beside_the_answers_of_ended_calls_loses_no_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is written by then, and the error would end the gate process (found by the storm at seed 422)."""
    one = await joined(world, slots=1)
    await one.commit([good(1), good(2, durable=True)])
    monkeypatch.setattr("dispatcher.service.gate.replica.keep_outcomes", raising(keep_outcomes, lambda *_: True))
    outcomes = (await one.commit([Cancel("one-2", "cancelled")])).outcomes
    assert outcomes == [Over("one-2", 0, "cancelled")]


async def test_commands_that_fail_only_together_are_written_apart(
    world: World, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = codec.encode_entry

    def no_two(entry: Entry, of_format: int, *, checked: bool = False) -> bytes:
        if Counter(type(fact) for fact in entry.facts)[Accepted] > 1:
            raise RuntimeError("two of them")
        return plain(entry, of_format, checked=checked)

    monkeypatch.setattr("dispatcher.service.gate.deciding.encode_entry", no_two)
    assert all(isinstance(each, Offer) for each in (await one.commit([good(n) for n in (1, 2, 3)])).outcomes)
    assert await agrees(world, one)


def count_decided(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Command]]:
    """Return the commands of every decision from here on."""
    decided: list[Sequence[Command]] = []
    plain = Shard.decide

    def counted(self: Shard, commands: Sequence[Command], now: float) -> Any:
        decided.append(commands)
        return plain(self, commands, now)

    monkeypatch.setattr(Shard, "decide", counted)
    return decided


async def stream(entries: int, faults: int) -> int:
    """Commit entries of 20 commands that are right and some that are not. Return the number that was refused."""
    world = World()
    one, now, refused = await joined(world), world.clock.now(), 0
    for entry in range(entries):
        batch: list[Command] = [good(1 + 20 * entry + number) for number in range(20)]
        for number in range(faults):
            batch.insert(4 * number, evil(10_000 + faults * entry + number, cost=nan))
        refused += sum(map(is_internal, (await one.commit(batch)).outcomes))
    assert world.clock.now() - now < SUSPECT_S / 2
    assert await agrees(world, one)
    return refused


@pytest.mark.parametrize("faults", [1, 5])
async def test_a_stream_of_faults_costs_the_others_a_fifth(monkeypatch: pytest.MonkeyPatch, faults: int) -> None:
    """The cost is counted in commands that were decided: besides the stream, the first search and the first credit."""
    decided, entries = count_decided(monkeypatch), 100
    assert await stream(entries, 0) == 0
    alone = sum(map(len, decided))
    decided.clear()
    assert await stream(entries, faults) == faults * entries
    beside = sum(max(1, len(commands)) for commands in decided)
    search, time_s = 4 * (20 + faults), 2.0
    assert beside <= (1 + EXTRA) * alone + search + CREDIT_MAX + CREDIT_PER_S * time_s


async def test_a_tenant_with_a_fault_is_served_again_at_once(world: World, one: Replica) -> None:
    assert is_internal((await one.commit([good(1), evil(20, cost=nan)])).outcomes[1])
    outcomes = (await one.commit([evil(21), good(2), evil(22, cost=nan), evil(23)])).outcomes
    assert [type(outcome) for outcome in outcomes] == [Offer, Offer, Refused, Offer]
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Offer)] == ["one-21", "one-2", "one-23"]
    assert await agrees(world, one)


async def test_a_reply_that_cannot_be_sent_keeps_no_other_from_its_caller(world: World, one: Replica) -> None:
    got: list[Outcome | StoreUnavailable] = []
    commits = GroupCommit(one, world.clock, lambda _: None, lambda error, _: None)
    commits.add(good(1), raising(got.append, lambda _: True))
    commits.add(good(2), got.append)
    work = asyncio.ensure_future(commits.run())
    await world.clock.sleep(1.0)
    commits.add(report("w2", 1), got.append)
    await world.clock.sleep(1.0)
    commits.stop()
    await work
    assert len(got) == 2
    assert not isinstance(got[1], Refused | Done)
