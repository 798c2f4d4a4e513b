"""The facts of one entry as they are decided."""

from __future__ import annotations

from dispatcher.model.facts import Fact, OrderSet
from dispatcher.shard.fold import News, fold
from dispatcher.shard.state import State


class Decision:
    """The facts of one entry as they are decided, each applied to the state at once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.facts: list[Fact] = []
        self.news: list[News] = []

    def add(self, fact: Fact) -> None:
        if not self.state.log_order:
            self._add(OrderSet(self.state.order.name))
        self._add(fact)

    def _add(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.news += fold(self.state, fact)
