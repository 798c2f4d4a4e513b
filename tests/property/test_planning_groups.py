"""Request groups against a plain list: the same heads, counts and tokens after any arrivals, dispatches and returns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.planning.groups import GROUPS_MAX, GroupedRequest, GroupFigures, GroupKey, TenantGroups, split
from dispatcher.policies.planning.history import OutputHistory
from dispatcher.policies.planning.slo import SloClasses

MODELS = tuple(f"m{number}" for number in range(12))
arrivals = st.tuples(
    st.just("arrive"),
    st.tuples(
        st.sampled_from(MODELS),
        st.sampled_from(["interactive", "normal", "batch"]),
        st.sampled_from([10, 600, 3_000]),
        st.integers(0, 50),
    ),
)
others = st.tuples(st.sampled_from(["dispatch", "cancel", "return"]), st.integers(0, 1_000))
steps = st.lists(st.one_of(arrivals, arrivals, others), max_size=150)


class Model:
    """The waiting requests as a list. It takes the group of each request from the groups, and checks the rest."""

    def __init__(self) -> None:
        self.groups = TenantGroups(SloClasses(), OutputHistory())
        self.waiting: list[GroupedRequest] = []
        self.gone: list[GroupedRequest] = []
        self.arrived = 0

    def arrive(self, drawn: tuple[str, str, int, int]) -> None:
        model, slo_class, tokens, due_at = drawn
        number = self.arrived
        self.arrived += 1
        self._add(GroupedRequest(f"r{number}", model, slo_class, tokens, 2 * tokens, float(due_at), number))

    def leave(self, number: int, *, is_dispatch: bool) -> None:
        if not self.waiting:
            return
        request: GroupedRequest | None = self.waiting[number % len(self.waiting)]
        if is_dispatch and request:
            request = self.groups.head(request.model)
        assert request
        self.groups.remove(request)
        self.waiting.remove(request)
        self.gone.append(request)

    def come_back(self, number: int) -> None:
        if self.gone:
            self._add(self.gone.pop(number % len(self.gone)))

    def _add(self, request: GroupedRequest) -> None:
        own = GroupKey(request.model, request.slo_class, (10, 600, 3_000).index(request.input_tokens))
        present = {each.group_key for each in self.waiting}
        self.groups.add(request)
        self.waiting.append(request)
        may_fold = len(present) >= GROUPS_MAX and own not in present
        assert request.group_key == own or (may_fold and request.group_key in present)

    def check(self) -> None:
        by_key: dict[GroupKey | None, list[GroupedRequest]] = {}
        for each in sorted(self.waiting, key=lambda each: each.arrival):
            by_key.setdefault(each.group_key, []).append(each)
        figures = {each.key: each for each in self.groups.figures()}
        assert figures.keys() == by_key.keys()
        assert len(self.groups) == len(figures) <= max(GROUPS_MAX, GROUPS_MAX - 1 + len({key.model for key in figures}))
        for key, found in figures.items():
            requests = by_key[key]
            assert found.requests == len(requests)
            assert (found.due_at, found.last_due_at) == (requests[0].due_at, requests[-1].due_at)
            assert abs(found.expected_service - sum(3 * each.input_tokens for each in requests)) < 1e-6
        for model in MODELS:
            heads = [requests[0] for key, requests in by_key.items() if key and key.model == model]
            assert self.groups.head(model) is min(heads, key=lambda each: (each.due_at, each.arrival), default=None)


@settings(max_examples=150, deadline=None)
@given(played=steps)
def test_groups_are_those_of_a_list(played: list[tuple[str, object]]) -> None:
    model = Model()
    for kind, drawn in played:
        if isinstance(drawn, tuple):
            model.arrive(drawn)
        elif isinstance(drawn, int) and kind == "return":
            model.come_back(drawn)
        elif isinstance(drawn, int):
            model.leave(drawn, is_dispatch=kind == "dispatch")
        model.check()


@settings(max_examples=200, deadline=None)
@given(requests=st.integers(1, 3_000), batch=st.integers(1, 300), delta=st.integers(1, 16), last=st.floats(0, 3_600))
def test_a_split_keeps_requests_service_and_order(requests: int, batch: int, delta: int, last: float) -> None:
    whole = GroupFigures(GroupKey("m", "normal", 0), requests, 3.5 * requests, 10.0, 4.0, 0.0, last)
    pieces = split(whole, batch, delta)
    assert sum(each.requests for each in pieces) == requests
    assert max(each.requests for each in pieces) <= batch * delta
    assert len(pieces) == -(-requests // (batch * delta))
    assert len(Counter(each.requests for each in pieces)) <= 2
    assert abs(sum(each.expected_service for each in pieces) - whole.expected_service) < 1e-6
    dues = [bound for each in pieces for bound in (each.due_at, each.last_due_at)]
    assert dues == sorted(dues)
