"""The gate prefers the worker that had the beginning of a prompt last, within a bound, and no call waits for it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import Offer, Report, Return
from dispatcher.model.facts import Accepted, Entry, OrderSet
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.model.prefixes import KEY_CHARS, KEYS_MAX, prefix_keys, split_keys
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant
from dispatcher.shard import snapshot
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.codec import decode_entry, encode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.state import prefix_holders
from dispatcher.shard.state.prefix_holders import PrefixHolders

A, B, C = ("A" * KEY_CHARS, "B" * KEY_CHARS, "C" * KEY_CHARS)
ON = ShardSettings(prefix_lead=0.25)


def report(name: str, slots: int = 8, **fields: Any) -> Report:
    row: dict[str, Any] = {
        "worker": name, "url": f"http://{name}", "model": "m", "slots": slots, "context_tokens": 0,
        "bytes_per_token": 4.0, "service_per_s": 0.0, "draining": False, "kv_use": 0.0, "queue_length": 0, "live": (),
    }  # fmt: skip
    return Report(**{**row, **fields})


def gate_of(*workers: Report, settings: ShardSettings = ON) -> LoneGate:
    return LoneGate(settings, *(workers or (report("w1"), report("w2"), report("w3"))))


def place(gate: LoneGate, prefix: str, tenant: str = "a", **fields: Any) -> str:
    """Send a call, and return the worker that gets it; empty if it waits."""
    found = gate.do(gate.new_call(tenant, 1.0, prefix=prefix, **fields))
    return found.worker if isinstance(found, Offer) else ""


def test_the_worker_that_had_the_prefix_gets_the_next_turn() -> None:
    gate = gate_of()
    assert [place(gate, A), place(gate, B), place(gate, C)] == ["w1", "w2", "w3"]
    assert [place(gate, C), place(gate, B)] == ["w3", "w2"]
    assert place(gate, "X" * KEY_CHARS + B) == "w2", "a shorter beginning counts if the longer one is nowhere"
    assert place(gate, A + B) == "w1", "the longer beginning counts first"


def test_a_fuller_worker_gets_it_up_to_the_bound() -> None:
    gate = gate_of(report("w1"), report("w2"))
    placed = [place(gate, A) for _ in range(8)]
    assert placed[:3] == ["w1", "w1", "w1"], "two slots of eight more than the other one"
    assert {placed.count("w1"), placed.count("w2")} <= {3, 4, 5}


def test_without_the_setting_the_least_loaded_worker_gets_every_call() -> None:
    gate = gate_of(settings=ShardSettings())
    assert [place(gate, A) for _ in range(6)] == ["w1", "w2", "w3", "w1", "w2", "w3"]
    assert len(gate.shard.state.holders) == 0


def test_no_slot_waits_for_a_prefix() -> None:
    gate = gate_of(report("w1", slots=1), report("w2", slots=1))
    assert [place(gate, A), place(gate, A), place(gate, A)] == ["w1", "w2", ""]


@pytest.mark.parametrize("change", [{"draining": True}, {"model": "other"}])
def test_a_worker_without_a_free_slot_for_the_model_gets_none(change: dict[str, Any]) -> None:
    gate = gate_of()
    assert place(gate, A) == "w1"
    gate.decide(report("w1", **change))
    assert place(gate, A) == "w2"


def test_a_worker_that_lost_the_call_gets_it_not_again() -> None:
    gate = gate_of()
    call = gate.new_call("a", 1.0, prefix=A)
    assert isinstance(gate.do(call), Offer)
    assert place(gate, A) == "w1", "so that w1 is not the least loaded worker"
    decided = gate.decide(Return(call.id, 1, "failed", "w1"))
    assert [fact.worker for fact in decided.dispatched] == ["w2"]


def test_more_keys_than_the_log_takes_are_cut() -> None:
    decided = (gate := gate_of()).decide(gate.new_call("a", 1.0, prefix=A * (KEYS_MAX + 2)))
    (fact,) = (fact for fact in decided.facts if isinstance(fact, Accepted))
    assert fact.terms.prefix == A * KEYS_MAX


def test_a_log_of_the_older_format_has_no_keys() -> None:
    shard = Shard(ON)
    shard.fold(Entry(0, 1.0, "p#1", "", 0, (OrderSet("bwfq", OLDEST),)))
    gate = LoneGate(ON)
    gate.shard = shard
    gate.decide(report("w1"), report("w2"), now=2.0)
    decided = gate.decide(gate.new_call("a", 1.0, prefix=A, deadline_at=9e6))
    assert decided.entry is not None
    assert decode_entry(encode_entry(decided.entry, OLDEST, checked=True)) == decided.entry
    assert [each.terms.prefix for each in decided.facts if isinstance(each, Accepted)] == [""]


def test_an_entry_with_keys_is_read_and_one_without_is_as_before() -> None:
    gate = gate_of()
    for prefix in ("", A + B):
        entry = gate.decide(gate.new_call("a", 1.0, prefix=prefix, deadline_at=9e6)).entry
        assert entry is not None
        (fact,) = (each for each in entry.facts if isinstance(each, Accepted))
        assert len(fact.row()) == 16 + bool(prefix), "an older version ignores the further field"
        assert decode_entry(encode_entry(entry, NEWEST, checked=True)) == entry


def test_the_keys_are_bounded_and_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_holders, "GENERATION", 10)
    holders = PrefixHolders()
    for number in range(100):
        holders.note(f"{number:08}", "w")
        assert len(holders) <= 20
        assert [list(holders.of(f"{kept:08}")) for kept in range(max(0, number - 9), number + 1)].count([]) == 0
    assert list(holders.of("00000050")) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_undone_notes_leave_no_trace(seed: int) -> None:
    chance, holders = Random(seed), PrefixHolders()
    before_limit, prefix_holders.GENERATION = prefix_holders.GENERATION, 6
    try:
        for _ in range(30):
            rows, undo = holders.rows(), []
            for _ in range(chance.randint(1, 9)):
                keys = "".join(f"{chance.randint(0, 9):08}" for _ in range(chance.randint(1, 3)))
                undo.append(holders.note(keys, chance.choice("vw")))
            if chance.random() < 0.5:
                for each in reversed(undo):
                    holders.restore(each)
                assert holders.rows() == rows
            copy = PrefixHolders()
            copy.load(holders.rows())
            assert copy.rows() == holders.rows()
    finally:
        prefix_holders.GENERATION = before_limit


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_preference_changes_places_and_nothing_else(seed: int) -> None:
    """Beside a gate without it: the same calls are dispatched by the same entries, with the same clocks, whatever the
    prefixes are. Every copy agrees, also one from a snapshot."""
    chance = Random(seed)
    slots = [chance.randint(1, 6) for _ in range(3)]
    workers = [report(f"w{number}", slots=count) for number, count in enumerate(slots)]
    plain, affine = (gate_of(*workers, settings=each) for each in (ShardSettings(), ON))
    copy: Shard | None = None
    running: list[str] = []
    for _ in range(60):
        now = plain.now + chance.choice([0.0, 0.1, 5.0])
        if running and chance.random() < 0.45:
            name = running.pop(chance.randrange(len(running)))
            found = [gate.finish(name, 5, 3, now=now) for gate in (plain, affine)]
        else:
            prefix = "".join(chance.choices([A, B, C], k=chance.randint(0, 2)))
            tenant = chance.choice("abc")
            found = [
                gate.decide(gate.new_call(tenant, 2.0, prefix=prefix, deadline_at=9e6), now=now)
                for gate in (plain, affine)
            ]
        ours, theirs = ([fact._replace(worker="") for fact in each.dispatched] for each in found)
        assert ours == theirs
        for fact in found[1].dispatched:
            running.append(fact.id)
        loads = {name: len(each.running) / each.slots for name, each in affine.shard.state.workers.items()}
        for fact in found[1].dispatched if len(found[1].dispatched) == 1 else ():
            own = 1 / affine.shard.state.workers[fact.worker].slots
            others = [load for name, load in loads.items() if name != fact.worker and load < 1]
            assert loads[fact.worker] - own <= min([*others, loads[fact.worker] - own]) + ON.prefix_lead + 1e-9
        if found[1].entry is not None:
            if copy is None:
                copy = snapshot.load(snapshot.dump(affine.shard), ON)
            else:
                copy.fold(found[1].entry)
            assert snapshot.dump(copy) == snapshot.dump(affine.shard)


def chat(*messages: tuple[str, str]) -> Request:
    body = {"messages": [{"role": role, "content": text} for role, text in messages]}
    return Request("m", Endpoint.CHAT, body, 8)


def keys(request: Request, salt: str = "a.1") -> list[str]:
    return list(split_keys(prefix_keys(request, salt)))


def test_the_next_turn_has_the_key_of_the_turn_before() -> None:
    first = [("system", "be brief"), ("user", "hello")]
    second = [*first, ("assistant", "hi"), ("user", "more")]
    third = [*second, ("assistant", "no"), ("user", "please")]
    assert keys(chat(*second))[1:] == keys(chat(*first))
    assert keys(chat(*third))[1] == keys(chat(*second))[0]
    assert not set(keys(chat(*first), "b.2")) & set(keys(chat(*first)))
    assert len(keys(chat(*first))[0]) == KEY_CHARS


def test_the_tenants_of_a_group_have_the_same_keys() -> None:
    first, second, other = (
        Tenant(name, prefix_group=group).sharing for name, group in (("a.1", "g"), ("b.2", "g"), ("g", ""))
    )
    request = chat(("user", "hello"))
    assert keys(request, first) == keys(request, second) != keys(request, other)


def test_a_long_first_message_is_shared_by_other_chats() -> None:
    long = ("system", "x" * 2000)
    one, two = keys(chat(long, ("user", "a"))), keys(chat(long, ("user", "b")))
    assert (one[-1], len(one), one[0] == two[0]) == (two[-1], 2, False)
    assert len(keys(chat(("system", "x"), ("user", "a")))) == 1


@pytest.mark.parametrize(
    ("request_", "count"),
    [
        (Request("m", Endpoint.COMPLETION, {"prompt": "short"}, 1), 0),
        (Request("m", Endpoint.COMPLETION, {"prompt": "x" * 5000}, 1), 1),
        (Request("m", Endpoint.COMPLETION, {"prompt": [1, 2]}, 1), 0),
        (Request("m", Endpoint.EMBEDDINGS, {"input": "x" * 5000}, 1), 0),
        (Request("m", Endpoint.CHAT, {"messages": []}, 1), 0),
        (chat(("assistant", "I begin"), ("user", "\ud800")), 1),
        (chat(("user", "x" * 2000)), 1),
    ],
)
def test_what_has_keys(request_: Request, count: int) -> None:
    assert len(keys(request_)) == count
