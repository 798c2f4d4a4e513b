"""Returns of attempts: which of them count, when two processes know an attempt, and how a call ends by them."""

from __future__ import annotations

import pytest

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Cancel, Command, Done, End, Offer, Outcome, Over, Report, Return, Status
from dispatcher.model.facts import Entry
from dispatcher.shard.shard import Shard

WORKER = Report("w", "http://w", "m", 1, 0, 1.0, 10.0, False, 0.0, 0, ())


class OneShard:
    """A shard that writes each decision at once."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.do(WORKER)

    def do(self, command: Command, now: float = 0.0) -> Outcome:
        (outcome,), facts = self.shard.decide([command], now)
        position = self.shard.position
        self.shard.confirm(Entry(position, max(now, self.shard.at), "p:1", "", 0, facts) if facts else None)
        return outcome

    def accept(self, call_id: str, process: str, *, durable: bool = True, now: float = 0.0) -> Outcome:
        command = Accept(
            call_id,
            0,
            process,
            CallTerms("a", "m", 1.0, 100.0, durable, "", ""),
            TenantConfig(1, 1.0, 0.0, 0.0, "standard", 10),
        )
        return self.do(command, now)


def test_the_only_process_of_an_offer_returns_it() -> None:
    gate = OneShard()
    assert isinstance(gate.accept("p-1", "p"), Offer)
    assert gate.do(Return("p-1", 1, "unreachable", "w")) == Done()
    offer = gate.do(Status("p-1"))
    assert isinstance(offer, Offer)
    assert offer.attempt == 2


def test_a_process_does_not_return_what_another_one_may_have_begun() -> None:
    gate = OneShard()
    gate.accept("p-1", "p")
    gate.accept("p-1", "q")
    for reason in ("unreachable", "declined"):
        gate.do(Return("p-1", 1, reason, "w"))
        offer = gate.do(Status("p-1"))
        assert isinstance(offer, Offer)
        assert offer.attempt == 1
    gate.do(Return("p-1", 1, "not_begun", "w"))
    after = gate.do(Status("p-1"))
    assert not isinstance(after, Offer) or after.attempt == 2


def test_a_process_does_not_end_what_another_one_may_have_begun() -> None:
    gate = OneShard()
    gate.accept("p-1", "p")
    gate.accept("p-1", "q")
    assert gate.do(End("p-1", 1, "failed", 1, 1, unbegun=True)) == Done()
    assert isinstance(gate.do(Status("p-1")), Offer)
    assert isinstance(gate.do(End("p-1", 1, "done", 1, 2)), Over)


def test_nor_after_that_one_let_the_call_go_unless_the_answer_is_kept() -> None:
    gate = OneShard()
    for process in ("p", "q", ""):
        gate.accept("p-1", process)
    assert gate.do(End("p-1", 1, "failed", 1, 1, unbegun=True)) == Done()
    assert isinstance(gate.do(End("p-1", 1, "failed", 1, 1, unbegun=True, kept=True)), Over)


def test_a_process_that_held_the_call_may_still_begin_what_is_launched() -> None:
    gate = OneShard()
    gate.accept("p-1", "p")
    gate.accept("p-2", "p")
    gate.accept("p-2", "")
    gate.do(End("p-1", 1, "done", 1, 1))
    assert isinstance(gate.accept("p-2", "q"), Offer)
    gate.do(Return("p-2", 1, "unreachable", "w"))
    offer = gate.do(Status("p-2"))
    assert isinstance(offer, Offer)
    assert offer.attempt == 1


def test_a_cancelled_call_that_comes_back_after_its_deadline_has_expired() -> None:
    gate = OneShard()
    gate.accept("p-1", "p")
    gate.do(Cancel("p-1", "expired"), now=101.0)
    gate.do(Return("p-1", 1, "declined", "w"), now=101.0)
    over = gate.do(Status("p-1"))
    assert isinstance(over, Over)
    assert over.outcome == "expired"


@pytest.mark.parametrize(("at", "outcome"), [(97.0, "expired"), (95.0, "cancelled")])
def test_a_front_whose_clock_is_fast_gives_a_call_up_before_its_deadline(at: float, outcome: str) -> None:
    """The deadline is at 100 s. A call that is cancelled long before it was not cancelled because of it."""
    gate = OneShard()
    gate.accept("p-1", "p")
    gate.do(Cancel("p-1", "expired"), now=at)
    gate.do(Return("p-1", 1, "lost", "w"), now=at)
    over = gate.do(Status("p-1"))
    assert isinstance(over, Over)
    assert over.outcome == outcome
