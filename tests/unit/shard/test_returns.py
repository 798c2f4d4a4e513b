"""Returns of attempts: which of them count, when two processes know an attempt, and how a call ends by them."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Cancel, Done, End, Offer, Outcome, Over, Return, Status
from dispatcher.shard.alone import LoneGate, report


class OneShard(LoneGate):
    """A gate for calls until second 100."""

    def __init__(self) -> None:
        super().__init__(None, report(), now=0.0)

    def accept(self, call_id: str, process: str, *, durable: bool = True, now: float = 0.0) -> Outcome:
        call = self.new_call("a", 1.0, id=call_id, process=process, floor=0, durable=durable, deadline_at=100.0)
        return self.do(call, now)


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
