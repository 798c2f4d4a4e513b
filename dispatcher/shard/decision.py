"""Collects the facts of one entry while they are decided."""

from __future__ import annotations

from dispatcher.model.facts import Fact, OrderSet
from dispatcher.model.formats import NEWEST
from dispatcher.shard.fold import fold
from dispatcher.shard.state.state import State
from dispatcher.shard.steps import News


class Decision:
    """The facts of one entry while they are decided. Each is applied to the state at once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.facts: list[Fact] = []
        self.news: list[News] = []
        self.dispatching = ""
        """The id of the waiting call that is being dispatched. If that raises, the call is at fault, not a command."""
        self.is_folding = False
        """Whether a fact is being applied. If that raises, the fact has no inverse, and the state is of no use."""

    def add(self, fact: Fact) -> None:
        state = self.state
        facts: tuple[Fact, ...] = (fact,)
        if not state.log_order:  # nothing older has ever read this log
            facts = (OrderSet(state.order.name, NEWEST), fact)
        for each in facts:
            self.facts.append(each)
            self.is_folding = True
            self.news += fold(state, each)
            self.is_folding = False
