"""Step times from a log, by reconstructing the batch over time.

Between two events of a log, a prefill's end or a request's end, the batch does not change. A request with o output
tokens decodes o - 1 steps between its first token and its end, while n(t) requests run. In this time others are
prefilled, in mini-batches (first tokens at one moment). So each request gives one equation:

    end - first token = (o - 1) base + sum of n over its steps x per_request
                      + sum of KV tokens held over its steps x per_kv_token
                      + prompt tokens in between x prefill_per_token + mini-batches in between x prefill_base

A request that arrives at an idle server, and so waits for nothing, gives another:

    first token - arrival = prompt tokens x prefill_per_token + prefill_base

How many steps fall into each interval of constant n follows from the step times that are sought: the interval less its
prefill, over base + per_request n. So the fit is repeated with the intervals of the last one until it stays, from
intervals in proportion to time. The number of a request's steps is known, so an error of this division only shifts the
means of its n and of the KV tokens. A request's tokens are taken to come evenly.

With chunked prefill, prompts share steps with decodes: there is no prefill_base, and an idle server takes a decode's
base for each chunk of the prompt.

A prefill need not grow in proportion to its tokens: matrix products are computed in tiles. With `knots`, the two terms
of the prefill are replaced by the seconds of a mini-batch of each of these sizes, and others lie on the lines between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, inf

from headgate.simulator.engines.profile import knot_weights, on_curve
from headgate.simulator.fit.least_squares import LeastSquares
from headgate.simulator.fit.log import LoggedRequest

_TOGETHER_S = 0.002
"""First tokens that follow one another within this time are those of one mini-batch. In the VTC artifact's logs those
of one are at most 0.5 ms apart, and those of two at least 100 ms."""
_ROUNDS_MAX = 60
_CONVERGED = 1e-9

Columns = tuple[float, ...]
"""The columns have the order of StepSeconds. Where a log cannot tell two apart, the first of them gets all: of equal
prompts, each prefilled alone, the time is by token."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds, as in an engine profile."""

    decode_base_s: float
    decode_per_request_s: float
    decode_per_kv_token_s: float
    prefill_per_token_s: float
    prefill_base_s: float
    prefill_curve: tuple[tuple[int, float], ...] = ()
    """Tokens and seconds, as in an engine profile; in place of the two before."""

    def columns(self) -> Columns:
        prefill = (
            tuple(seconds for _, seconds in self.prefill_curve)
            if self.prefill_curve
            else (self.prefill_per_token_s, self.prefill_base_s)
        )
        return (self.decode_base_s, self.decode_per_request_s, self.decode_per_kv_token_s, *prefill)

    def prefill_s(self, tokens: float) -> float:
        if self.prefill_curve:
            return on_curve(self.prefill_curve, tokens)
        return self.prefill_base_s + self.prefill_per_token_s * tokens

    def step_s(self, running: int, held: float) -> float:
        return self.decode_base_s + self.decode_per_request_s * running + self.decode_per_kv_token_s * held


@dataclass(frozen=True, slots=True)
class _Interval:
    """The time from one event to the next. `held`: KV tokens, their mean. `prefilled`: prompt tokens
    of the mini-batch that ends it, if one does."""

    seconds: float
    running: int
    held: float
    prefilled: int | None


class BatchHistory:
    """The batch over time. `extra`: tokens that the server adds to each prompt. `chunk`: None for prefill in steps of
    its own. `knots`: sizes of mini-batches between which a prefill's time is a line; none for one line."""

    def __init__(
        self,
        requests: Sequence[LoggedRequest],
        *,
        extra: int = 0,
        chunk: int | None = None,
        knots: Sequence[int] = (),
    ) -> None:
        self._requests = requests
        self._extra = extra
        self._chunk = chunk
        self.knots = tuple(knots)
        self._joined_s = _mini_batches(requests)
        """When each request's mini-batch was prefilled, by the request's number."""
        self._set_intervals()

    def _set_intervals(self) -> None:
        prompts: dict[float, int] = {}
        change: dict[float, int] = {}
        for request, joined_s in zip(self._requests, self._joined_s, strict=True):
            prompts[joined_s] = prompts.get(joined_s, 0) + request.input_tokens + self._extra
            change[joined_s] = change.get(joined_s, 0) + 1
            end_s = max(request.end_s, joined_s)
            change[end_s] = change.get(end_s, 0) - 1
        self._times = sorted(change)
        running = list(accumulate(change[time] for time in self._times))
        held = self._sum_held_tokens()
        self._intervals = [
            _Interval(
                end_s - begin_s, running[number], (held[2 * number + 1] + held[2 * number + 2]) / 2, prompts.get(end_s)
            )
            for number, (begin_s, end_s) in enumerate(pairwise(self._times))
        ]
        self.kv_max = ceil(max(held))
        self._prompts = prompts
        shares = [
            self._prefill_columns(prompts[time]) if time in prompts else (0.0,) * (len(self.knots) or 2)
            for time in self._times[1:]
        ]
        self._prefills = [_sums(column) for column in zip(*shares, strict=True)]
        """This has the sums of each column of the prefill up to each event."""
        self.batch_max = max(running)

    def equations(self, times: StepSeconds | None) -> Iterator[tuple[Columns, float]]:
        """Yield the columns of each request's decoding, and its seconds. `times`: of the last fit."""
        steps = [self._steps_in(interval, times) for interval in self._intervals]
        passed = _sums(steps)
        in_batch = _sums(count * each.running for count, each in zip(steps, self._intervals, strict=True))
        held = _sums(count * each.held for count, each in zip(steps, self._intervals, strict=True))
        for request, joined_s in zip(self._requests, self._joined_s, strict=True):
            begin, end = bisect_left(self._times, joined_s), bisect_left(self._times, max(request.end_s, joined_s))
            if request.output_tokens > 1 and passed[end] > passed[begin]:
                own = request.output_tokens - 1
                share = own / (passed[end] - passed[begin])
                running, tokens_held = share * (in_batch[end] - in_batch[begin]), share * (held[end] - held[begin])
                prefills = (sums[end] - sums[begin] for sums in self._prefills)
                yield (own, running, tokens_held, *prefills), request.end_s - joined_s

    def idle_equations(self) -> Iterator[tuple[Columns, float]]:
        """Yield the columns of each first token that waited for nothing, and its seconds."""
        busy_until_s = -inf
        for number, (request, joined_s) in enumerate(zip(self._requests, self._joined_s, strict=True)):
            following = self._requests[number + 1].arrival_s if number + 1 < len(self._requests) else inf
            if busy_until_s < request.arrival_s < following:
                tokens = self._prompts[joined_s]
                alone = request.input_tokens + self._extra
                if tokens == alone:
                    steps = ceil(max(tokens, 1) / self._chunk) if self._chunk else 0
                    yield (steps, 0.0, 0.0, *self._prefill_columns(tokens)), joined_s - request.arrival_s
            busy_until_s = max(busy_until_s, request.end_s)

    def _prefill_columns(self, tokens: int) -> tuple[float, ...]:
        """Return what a mini-batch of so many tokens adds to the columns of the prefill."""
        if self.knots:
            return knot_weights(self.knots, tokens)
        return tokens, 0.0 if self._chunk else 1.0

    def _steps_in(self, interval: _Interval, times: StepSeconds | None) -> float:
        """Return the decode steps of an interval, up to a common factor where no step times are known."""
        if not interval.running:
            return 0.0
        if times is None:
            return interval.seconds
        seconds = interval.seconds
        if interval.prefilled is not None:
            seconds -= times.prefill_s(interval.prefilled)
        step_s = times.step_s(interval.running, interval.held)
        return max(seconds, 0.0) / step_s if step_s > 0 else max(seconds, 0.0)

    def has_wait_when_full(self, wait_s: float) -> bool:
        """Return whether a request arrived while the batch was at its largest, and waited for longer than this."""
        spans = zip(self._times, self._times[1:], self._intervals, strict=False)
        full = [(begin_s, end_s) for begin_s, end_s, interval in spans if interval.running == self.batch_max]
        begins_s = [begin_s for begin_s, _ in full]
        return any(
            request.first_token_s - request.arrival_s > wait_s
            and (last := bisect_left(begins_s, request.first_token_s) - 1) >= 0
            and full[last][1] > request.arrival_s
            for request in self._requests
        )

    def _sum_held_tokens(self) -> list[float]:
        """Return the KV tokens held just after and just before each event, if each request's tokens come evenly."""
        rate: dict[float, float] = dict.fromkeys(self._times, 0.0)
        level: dict[float, float] = dict.fromkeys(self._times, 0.0)
        for request, joined_s in zip(self._requests, self._joined_s, strict=True):
            end_s = max(request.end_s, joined_s)
            per_s = (request.output_tokens - 1) / (end_s - joined_s) if end_s > joined_s else 0.0
            rate[joined_s] += per_s
            rate[end_s] -= per_s
            held = request.input_tokens + self._extra + 1
            level[joined_s] += held
            level[end_s] -= held + per_s * (end_s - joined_s)
        found = []
        now = per_s_now = 0.0
        last_s = self._times[0]
        for time in self._times:
            before = now + per_s_now * (time - last_s)
            now, per_s_now, last_s = before + level[time], per_s_now + rate[time], time
            found += [before, now]
        return found


def _mini_batches(requests: Sequence[LoggedRequest]) -> list[float]:
    """Return for each request when its mini-batch was prefilled: the last of the first tokens that come together."""
    order = sorted(range(len(requests)), key=lambda number: requests[number].first_token_s, reverse=True)
    joined = [0.0] * len(requests)
    last_s = group_s = inf
    for number in order:
        first_s = requests[number].first_token_s
        if last_s - first_s > _TOGETHER_S:
            group_s = first_s
        last_s = first_s
        joined[number] = group_s
    return joined


def _sums(values: Iterator[float] | Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


@dataclass(frozen=True, slots=True)
class FittedSteps:
    """`errors_s`: of each request's decoding, in the batch that the log had. `decodes`, `idle`: the equations."""

    times: StepSeconds
    errors_s: tuple[float, ...]
    decodes: int
    idle: int


def fit_step_times(*histories: BatchHistory) -> FittedSteps:
    """Fit the step times of one log, or of several of one server."""
    times: StepSeconds | None = None
    for _ in range(_ROUNDS_MAX):
        before, times = times, _fit_once(histories, times)
        if before is not None and _is_close(before, times):
            break
    assert times is not None  # noqa: S101
    rows = [row for history in histories for row in history.equations(times)]
    errors = tuple(abs(_predict(times, columns) - seconds) for columns, seconds in rows)
    return FittedSteps(times, errors, len(rows), sum(1 for history in histories for _ in history.idle_equations()))


def _fit_once(histories: Sequence[BatchHistory], times: StepSeconds | None) -> StepSeconds:
    knots = histories[0].knots
    squares = LeastSquares(3 + (len(knots) or 2))
    for history in histories:
        for columns, seconds in (*history.equations(times), *history.idle_equations()):
            squares.add(columns, seconds)
    base_s, per_request_s, per_kv_token_s, *prefill = squares.solve()
    if not knots:
        per_token_s, prefill_base_s = prefill
        return StepSeconds(base_s, per_request_s, per_kv_token_s, per_token_s, prefill_base_s)
    return StepSeconds(base_s, per_request_s, per_kv_token_s, 0.0, 0.0, tuple(zip(knots, prefill, strict=True)))


def _predict(times: StepSeconds, columns: Sequence[float]) -> float:
    return sum(time * column for time, column in zip(times.columns(), columns, strict=True))


def _is_close(before: StepSeconds, after: StepSeconds) -> bool:
    pairs = zip(before.columns(), after.columns(), strict=True)
    return all(abs(old - new) <= _CONVERGED * max(old, new) for old, new in pairs)
