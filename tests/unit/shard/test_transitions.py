"""The table of a call's states is what decisions do: no transition is missing, and none is too much."""

from __future__ import annotations

from random import Random

import pytest

from dispatcher.model.call import TenantConfig
from dispatcher.model.commands import Accept, Cancel, Command, End, Gone, Leave, Present, Report, Return, Silent, Tick
from dispatcher.model.facts import Fact
from dispatcher.shard.fold import fold
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.state import State
from dispatcher.shard.steps import News
from tests.support import transition_page
from tests.support.world.lone_shard import LoneShard, report
from tests.support.world.transitions import TRANSITIONS, CallState, find_state

Seen = set[tuple[CallState, type[Fact], CallState]]
PROCESSES = ("p", "q", "r")
WORKERS = ("w0", "w1")
STEPS, STEPS_MAX = 2000, 30_000


def watch(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Collect every change of a call's state, with the fact that made it. The real fold applies the facts."""
    seen: Seen = set()

    def watched(state: State, fact: Fact) -> list[News]:
        before = states(state)
        news = fold(state, fact)
        after = states(state)
        for name in before.keys() | after.keys():
            change = (before.get(name, CallState.NEW), type(fact), after.get(name, CallState.ENDED))
            if change[0] is not change[2]:
                seen.add(change)
        return news

    monkeypatch.setattr("dispatcher.shard.fold.fold", watched)
    return seen


def states(state: State) -> dict[str, CallState]:
    return {call.id: find_state(call) for call in state.calls.values()}


class Walk:
    """A gate that gets commands at random, in any order that its processes and workers could send them in."""

    def __init__(self, seed: int, order: str) -> None:
        self.draw = Random(seed)
        self.gate = LoneShard(ShardSettings(order=order), *(report(worker, 2) for worker in WORKERS))

    def step(self) -> None:
        draw, state = self.draw, self.gate.shard.state
        calls = sorted(state.calls.values(), key=lambda call: call.arrival)
        running = [call for call in calls if call.worker]
        match draw.randrange(10):
            case 0 if running:
                call, outcome = draw.choice(running), draw.choice(("done", "failed", "cancelled"))
                self.gate.do(End(call.id, call.attempt, outcome, draw.randrange(9), 0, kept=call.terms.durable))
            case 1 | 2 if running:
                call, reason = draw.choice(running), draw.choice(("not_begun", "refused", "declined", "unreachable"))
                self.gate.do(Return(call.id, call.attempt, reason, call.worker))
            case 3 | 8:
                self.gate.do(self._change_of_a_process())
            case 4:
                self.gate.do(self._change_of_a_worker())
            case 5:
                self.gate.do(Tick(), now=self.gate.now + draw.choice((0.1, 3.0, 20.0)))
            case 6 if calls:
                self.gate.do(Cancel(draw.choice(calls).id, "cancelled"))
            case 7 if calls:
                self.gate.do(self._repetition(draw.choice(calls).id))
            case _:
                self._accept()

    def _accept(self) -> None:
        draw = self.draw
        durable = draw.random() < 0.5
        process = draw.choice(("", *PROCESSES)) if durable else draw.choice(PROCESSES)
        tenant, wait_s = draw.choice("ab"), draw.choice((5.0, 100.0))
        self.gate.accept(tenant, process=process, durable=durable, wait_s=wait_s, rate_per_s=5.0, burst=20.0)

    def _repetition(self, name: str) -> Command:
        """Return an Accept of a known call by any process: it takes a durable call, or lets it go."""
        call, holder = self.gate.shard.state.calls[name], self.draw.choice(("", *PROCESSES))
        terms = call.terms._replace(app="", interaction="")
        return Accept(name, 0, holder, terms, TenantConfig(1, 1.0, 0.0, 0.0, "standard", 9))

    def _change_of_a_process(self) -> Command:
        name = self.draw.choice(PROCESSES)
        process = self.gate.shard.state.processes.get(name)
        if process is None or not process.silent:
            return Silent(name, False)
        return self.draw.choice((Present(name), Gone(name, False)))

    def _change_of_a_worker(self) -> Command:
        name = self.draw.choice(WORKERS)
        joined: Report = report(name, self.draw.randrange(4))
        return self.draw.choice((joined, joined, Leave(name), Silent(name, True), Gone(name, True)))


@pytest.mark.parametrize("order", ["bwfq", "ratio"])
def test_decisions_make_exactly_the_transitions_of_the_table(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    walk, table = Walk(1, order), {(each.before, each.fact, each.after) for each in TRANSITIONS}
    seen = watch(monkeypatch)
    steps = 0
    while steps < STEPS or (table - seen and steps < STEPS_MAX):
        walk.step()
        steps += 1
    assert seen - table == set(), "the table has no such transition"
    assert table - seen == set(), "no decision makes this transition"


def test_the_page_shows_the_table() -> None:
    page = transition_page.PAGE.read_text("utf-8")
    assert transition_page.TABLE.findall(page) == [transition_page.write_table()], "run it: see the module"


def test_the_picture_is_drawn_from_the_table() -> None:
    assert transition_page.PICTURE.read_text("utf-8") == transition_page.draw(), "run it: see the module"


def test_the_picture_has_every_state_and_fact() -> None:
    picture = transition_page.draw()
    for each in TRANSITIONS:
        assert f">{each.before}<" in picture
        assert each.fact.__name__ in picture
