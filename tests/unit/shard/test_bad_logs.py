"""A log that cannot be used: the shard stops and names the entry. Nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, Report
from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import (
    Accepted,
    Cancelling,
    Dispatched,
    Dropped,
    Ended,
    Entry,
    Fact,
    Held,
    ProcessLost,
    WorkerLost,
)
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.codec import decode_entry, decode_entry_at, encode_entry, pack
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, fields_of, load

NOW = 1_000_000.0
WORKER = Report("w", "http://w", "m", 0, 0, 1.0, 0.0, False, 0.0, 0, ())
CALL = Accept(
    "p-1", 0, "p", CallTerms("a", "m", 1.0, NOW + 60, False, "", ""), TenantConfig(1, 1.0, 5.0, 10.0, "standard", 9)
)


def written(order: str, *commands: Command) -> tuple[Shard, list[Entry]]:
    gate = LoneGate(ShardSettings(order=order), now=NOW)
    entries = [gate.decide(command).entry for command in commands]
    return gate.shard, [entry for entry in entries if entry is not None]


def test_a_log_of_another_order_stops_the_shard_and_names_the_order() -> None:
    _, entries = written("bwfq", WORKER, CALL)
    other = Shard(ShardSettings(order="virtual-clock"))
    with pytest.raises(LogCorrupt, match=r"entry 0: .*'bwfq': set the same order everywhere"):
        other.fold(entries[0])


def test_a_snapshot_of_another_order_is_refused_with_what_to_do() -> None:
    shard, _ = written("bwfq", WORKER, CALL)
    with pytest.raises(LogCorrupt, match="set the same order everywhere"):
        load(dump(shard), ShardSettings(order="fcfs"))


def test_a_gap_is_refused() -> None:
    _, entries = written("bwfq", WORKER, CALL)
    with pytest.raises(LogCorrupt, match="entry 1 follows entry -1"):
        Shard().fold(entries[1])


def test_an_entry_that_does_not_fold_is_named() -> None:
    shard, _ = written("bwfq", WORKER)
    with pytest.raises(LogCorrupt, match="entry 1: Dropped"):
        shard.fold(Entry(1, NOW, "p:9", "", 0, (Dropped("p-9", "cancelled"),)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"j{",
        b"znot compressed",
        pack([NEWEST, 0]),
        pack([NEWEST, 0, NOW, "p:1", "", 0, [["!", 1]]]),
        pack([OLDEST, 0, NOW, "p:1", "", 0, [["?", 1]]]),
        pack([OLDEST, 0, NOW, "p:1", "", 0, [["c", "too", "many", "fields"]]]),
        pack([NEWEST + 1, 0, NOW, "p:1", "", 0, []]),
    ],
)
def test_bytes_that_are_no_entry_of_this_version_are_refused(data: bytes) -> None:
    with pytest.raises(LogCorrupt):
        decode_entry(data)


def test_bytes_that_do_not_decode_are_named_by_their_position() -> None:
    with pytest.raises(LogCorrupt, match="entry 7 cannot be read"):
        decode_entry_at(7, b"j{")


def test_a_newer_entry_says_what_to_do() -> None:
    with pytest.raises(LogCorrupt, match="update this process"):
        decode_entry(pack([NEWEST + 1, 7, NOW, "p:1", "", 0, []]))


@pytest.mark.parametrize("field", [1, 2, 3, 4, 5, 6])
def test_an_entry_whose_head_has_a_wrong_type_is_refused(field: int) -> None:
    fields: list[object] = [NEWEST, 0, NOW, "p:1", "", 0, []]
    fields[field] = {"not": "this"}
    with pytest.raises(LogCorrupt):
        decode_entry(pack(fields))


@pytest.mark.parametrize(
    "fact",
    [
        Dispatched("p-1", "unknown", 1, False, 1.0, 1.0, (0.0, 0.0), 0.0),
        Ended("p-1", 1, "done", 1, 1, 1.0, (0.0, 0.0), 0.0),
        Accepted("no sequence", 0, "p", CallTerms("a", "m", 1.0, NOW, False, "", ""), 0.0, (0.0, 0.0)),
        Accepted("p-2", 0, "p", CallTerms("a", "m", 1.0, "soon", False, "", ""), 0.0, (0.0, 0.0)),  # type: ignore[arg-type]
        WorkerLost("nothing"),
        ProcessLost("nothing"),
        Held("p-9", "p"),
        Cancelling("p-9"),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_facts_that_do_not_fit_are_named_with_their_entry(fact: Fact) -> None:
    shard, _ = written("bwfq", WORKER, CALL)
    with pytest.raises(LogCorrupt, match=f"entry 2: {type(fact).__name__}"):
        shard.fold(Entry(2, NOW, "p:2", "", 0, (fact,)))


@pytest.mark.parametrize(
    "damage",
    [
        {"format": NEWEST + 1},
        {"format": None},
        {"position": None, "at": None, "tenants": [[1]]},
        {"calls": [["unknown"]]},
        {"usage": [["a"]]},
        {"workers": [[["w"], 0]]},
        {"processes": [["p"]]},
        {"ends": [[]]},
        {"usage_saved": []},
    ],
    ids=str,
)
def test_a_snapshot_that_does_not_load_is_refused(damage: dict[str, object]) -> None:
    shard, _ = written("bwfq", WORKER, CALL)
    with pytest.raises(LogCorrupt):
        load(pack({**fields_of(dump(shard)), **damage}), ShardSettings())


def test_a_newer_snapshot_says_what_to_do() -> None:
    shard, _ = written("bwfq", WORKER, CALL)
    with pytest.raises(LogCorrupt, match="update this process"):
        load(pack({**fields_of(dump(shard)), "format": NEWEST + 1}), ShardSettings())


@pytest.mark.parametrize(
    "odd",
    [float("nan"), float("inf"), "half \ud83d", b"bytes", {1}, [(1,)], object(), 10**5000],
    ids=lambda odd: type(odd).__name__,
)
def test_a_value_that_does_not_decode_to_itself_is_never_encoded(odd: object) -> None:
    _, entries = written("bwfq", WORKER, CALL)
    accepted = next(fact for fact in entries[1].facts if isinstance(fact, Accepted))
    assert decode_entry(encode_entry(entries[1], checked=True)) == entries[1]
    for field in ("cost", "app", "clocks", "due_at", "input_tokens"):
        changed: dict[str, Any] = {field: odd}
        if field in CallTerms._fields:
            changed = {"terms": accepted.terms._replace(**changed)}
        with pytest.raises((ValueError, TypeError)):
            encode_entry(entries[1]._replace(facts=(accepted._replace(**changed),)), checked=True)
        assert encode_entry(entries[1], checked=True)
