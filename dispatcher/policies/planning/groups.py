"""Request groups: the waiting requests of one tenant that are planned together. Pure. Times are passed in.

Source: QLM (SoCC 2024), Definition 4.1 and Algorithm 1. A group has requests of one model, one SLO class and one length
bucket, first come, first served. Deviations:

- The paper clusters with k-means over all requests. Here a request's group is its key, found in O(1) at its arrival.
  The bucket is that of the prompt, which is known then. Outputs are not known, and enter as mean and deviation.
- The paper halves a group that is larger than δ x batch. Here only the planner splits, and into equal pieces.
- A tenant has at most GROUPS_MAX groups. When it has that many, a request of another key joins the laxest group of its
  model: one of its own class if there is one. It keeps its own due time. Only a request whose model has no group gets a
  further one, since no other group can take it: so there are at most GROUPS_MAX - 1 groups more than models.

An arrival and a dispatch are O(1). A request that returns takes its old place: at once if that is near the front, where
a dispatch took it from. Otherwise the group is sorted when its head is needed, once for all requests that returned. The
head for a loaded model is the least due time of the heads of that model's groups, of which
there are at most GROUPS_MAX: a request for another model blocks nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile
from math import ceil, isfinite
from operator import attrgetter
from typing import NamedTuple

from dispatcher.policies.planning.history import OutputHistory, lengths_without_history
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS, WeightedTokens

GROUPS_MAX = 24
LENGTH_BOUNDS = (512, 2048)
"""Prompts of up to so many tokens are one bucket; longer ones are the last. QLM keeps prompts of 3,000 tokens and more
apart (section 8.3, Figure 16)."""
_NEAR_FRONT = 32
"""A returned request with more requests before it waits for the sort."""
DELTA = 4
"""δ of QLM (Figure 19): a planned group has at most this many batches."""


_Key = tuple[str, str, int]
"""Equal to the GroupKey of the same fields. A plain tuple is made in a fraction of its time, at every arrival."""


class GroupKey(NamedTuple):
    model: str
    slo_class: str
    length_bucket: int


@dataclass(eq=False, slots=True)
class GroupedRequest:
    """A request that waits. `due_at`: when its first token is due; any finite time, 0 included, may be long past.

    `arrival`: its number in the order of arrivals. `group`: where it waits, None if it does not. `group_key`: of the
    last group that it waited in; its output is recorded under this key. Raises ValueError for an impossible number.
    """

    id: str
    model: str
    slo_class: str
    input_tokens: int
    max_tokens: int
    due_at: float
    arrival: int
    group: RequestGroup | None = None
    group_key: GroupKey | None = None

    def __post_init__(self) -> None:
        if self.input_tokens < 0 or self.max_tokens < 0:
            raise ValueError(f"request {self.id!r} has {self.input_tokens} input and {self.max_tokens} max tokens")
        if not isfinite(self.due_at):
            raise ValueError(f"request {self.id!r} is due at {self.due_at!r}; a finite time is needed")


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What the planner gets of a group. `output_mean`, `output_deviation`: of one output, in tokens.

    `expected_service`: of all its requests, in service units. `due_at`, `last_due_at`: of its first and last request.
    """

    key: GroupKey
    requests: int
    expected_service: float
    output_mean: float
    output_deviation: float
    due_at: float
    last_due_at: float


class RequestGroup:
    """The waiting requests of one key in the order of arrival, and the sums of their tokens."""

    __slots__ = ("_is_sorted", "_last_arrival", "input_tokens", "key", "max_tokens", "waiting")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.waiting: OrderedDict[str, GroupedRequest] = OrderedDict()
        self.input_tokens = self.max_tokens = 0
        self._last_arrival = -1
        self._is_sorted = True

    @property
    def head(self) -> GroupedRequest:
        """The first request. Raises StopIteration if there is none; an empty group is not kept."""
        if not self._is_sorted:
            self._sort()
        return next(iter(self.waiting.values()))

    def add(self, request: GroupedRequest) -> None:
        if self.waiting.setdefault(request.id, request) is not request:
            raise ValueError(f"another request {request.id!r} waits already")
        self.input_tokens += request.input_tokens
        self.max_tokens += request.max_tokens
        request.group, request.group_key = self, self.key
        if request.arrival >= self._last_arrival:
            self._last_arrival = request.arrival
        else:
            self._take_old_place(request)

    def remove(self, request: GroupedRequest) -> None:
        del self.waiting[request.id]
        self.input_tokens -= request.input_tokens
        self.max_tokens -= request.max_tokens
        request.group = None

    def figures(self, history: OutputHistory, service: WeightedTokens) -> GroupFigures:
        """Return the group's figures. Without history an output is between 0 and max_tokens, all equally likely."""
        requests = len(self.waiting)
        max_tokens = self.max_tokens / requests
        lengths = history.lengths(self.key, lengths_without_history(max_tokens))
        mean = min(lengths.output_mean, max_tokens)
        expected = service.input_weight * self.input_tokens + service.output_weight * requests * mean
        head, last = self.head, next(reversed(self.waiting.values()))
        return GroupFigures(self.key, requests, expected, mean, lengths.output_deviation, head.due_at, last.due_at)

    def _take_old_place(self, request: GroupedRequest) -> None:
        earlier = takewhile(lambda each: each.arrival < request.arrival, self.waiting.values())
        before = list(islice(earlier, _NEAR_FRONT + 1))
        self._is_sorted = self._is_sorted and len(before) <= _NEAR_FRONT
        if self._is_sorted:
            for each in (request, *reversed(before)):
                self.waiting.move_to_end(each.id, last=False)

    def _sort(self) -> None:
        for each in sorted(self.waiting.values(), key=attrgetter("arrival")):
            self.waiting.move_to_end(each.id)
        self._is_sorted = True


class TenantGroups:
    """The groups of one tenant, by model. `history`: of outputs by group key. `service`: the weights of tokens."""

    def __init__(self, classes: SloClasses, history: OutputHistory, service: WeightedTokens = WEIGHTED_TOKENS) -> None:
        self._classes = classes
        self._history = history
        self._service = service
        self._by_model: dict[str, dict[_Key, RequestGroup]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: GroupedRequest) -> None:
        """Queue a request, new or returned. Raises ValueError if it waits already or its SLO class is unknown."""
        if request.group is not None:
            raise ValueError(f"request {request.id!r} waits already")
        self._group_for(request).add(request)

    def remove(self, request: GroupedRequest) -> None:
        """Take out a request that is dispatched or cancelled. Raises ValueError if it does not wait."""
        group = request.group
        if group is None:
            raise ValueError(f"request {request.id!r} does not wait")
        group.remove(request)
        if not group.waiting:
            of_model = self._by_model[group.key.model]
            del of_model[group.key]
            self._count -= 1
            if not of_model:
                del self._by_model[group.key.model]

    def head(self, model: str) -> GroupedRequest | None:
        """Return the head of a loaded model's groups that is due first; at equal due times, that arrived first."""
        best: GroupedRequest | None = None
        for group in self._by_model.get(model, {}).values():
            head = group.head
            if (
                best is None
                or head.due_at < best.due_at
                or (head.due_at == best.due_at and head.arrival < best.arrival)
            ):
                best = head
        return best

    def figures(self) -> Iterator[GroupFigures]:
        """Yield the figures of every group."""
        for of_model in self._by_model.values():
            for group in of_model.values():
                yield group.figures(self._history, self._service)

    def _group_for(self, request: GroupedRequest) -> RequestGroup:
        key = request.model, request.slo_class, bisect_left(LENGTH_BOUNDS, request.input_tokens)
        of_model = self._by_model.get(request.model)
        found = of_model.get(key) if of_model else None
        return self._further_group(GroupKey(*key)) if found is None else found

    def _further_group(self, key: GroupKey) -> RequestGroup:
        self._classes.rank(key.slo_class)
        of_model = self._by_model.setdefault(key.model, {})
        if of_model and self._count >= GROUPS_MAX:
            return self._laxest(of_model, key.slo_class)
        self._count += 1
        group = of_model[key] = RequestGroup(key)
        return group

    def _laxest(self, of_model: dict[_Key, RequestGroup], slo_class: str) -> RequestGroup:
        """Return the group that a further key of a model joins: of its own class if possible, then the laxest."""
        rank = self._classes.rank
        return of_model[max(of_model, key=lambda key: (key[1] == slo_class, rank(key[1]), key[2]))]


def split(group: GroupFigures, batch_size: int, delta: int = DELTA) -> list[GroupFigures]:
    """Return the fewest pieces of at most δ x batch requests, in order; their sizes differ by at most one.

    A piece is due when its first request is, which is read off a straight line from the first to the last due time:
    this assumes even arrivals. Raises ValueError unless batch_size and delta are at least 1.
    """
    if batch_size < 1 or delta < 1:
        raise ValueError(f"batch_size and delta must be at least 1, not {batch_size} and {delta}")
    pieces = ceil(group.requests / (batch_size * delta))
    bounds = [group.requests * number // pieces for number in range(pieces + 1)]
    return [_piece(group, begin, end) for begin, end in pairwise(bounds)]


def _piece(group: GroupFigures, begin: int, end: int) -> GroupFigures:
    return replace(
        group,
        requests=end - begin,
        expected_service=group.expected_service * (end - begin) / group.requests,
        due_at=_due_at(group, begin),
        last_due_at=_due_at(group, end - 1),
    )


def _due_at(group: GroupFigures, place: int) -> float:
    """Return the assumed due time of the request at this place, from 0."""
    span_s = max(0.0, group.last_due_at - group.due_at)
    return group.due_at + span_s * place / max(1, group.requests - 1)
