"""A profile fitted to a log, and its residuals: the log's own arrivals, simulated with it, beside the log.

The step times come from the log; the rules of admission do not. They are those of a named profile, or else:
the engine admits at every step, with a KV pool of the most tokens that the log shows at once and a batch of the most
requests. If no request waited at the largest batch, then these two are lower bounds, and a note says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.profile import EngineProfile, FittedOn
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fit.log import LoggedRequest, ServerLog
from headgate.simulator.fit.step_times import BatchHistory, StepSeconds, fit_step_times
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

_DIGITS = 13
"""Decimals of a step time in seconds: more are noise."""
_RULES = frozenset(EngineProfile.model_fields) - {
    *("name", "fitted", "source", "fitted_on", "overhead_s"),
    *("prefill_base_s", "prefill_per_token_s", "prefill_curve", "warm_up_s"),
    *("decode_base_s", "decode_per_request_s", "decode_per_kv_token_s"),
}
"""The fields of a profile that no log gives."""
_SPARE = 1.01
"""The pool beside the largest use in the log: the tokens of a running request are known only on average."""
_MISFIT = 0.5
"""First tokens that are off by more than this part of the log's median get a note."""
_STEP_S_MIN, _STEP_S_MAX = 0.0002, 5.0
"""Small models on fast GPUs and large ones on CPUs are within. Milliseconds that are read as seconds are not."""
_WAIT_STEPS = 5
"""A request that waits for so many decode steps beyond its prefill has waited for room and not for a step's end."""
FRACTIONS = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Residuals:
    """Seconds over the requests that both served, by quantile."""

    logged: dict[str, float]
    simulated: dict[str, float]
    errors: dict[str, float]


@dataclass(frozen=True, slots=True)
class EngineFit:
    """`decoding`: errors of each request's time from first token to end, in the batch that the log had. `refused`:
    requests of the log that the simulated engine did not serve."""

    profile: EngineProfile
    first_tokens: Residuals
    whole_answers: Residuals
    decoding: dict[str, float]
    refused: int
    notes: tuple[str, ...]


def fit_engine(log: ServerLog, name: str, policy: str, rules: EngineProfile | None = None) -> EngineFit:
    """Fit a profile of this name. `rules`: a profile whose admission is taken; None derives it from the log.

    Raises ConfigurationError if the log cannot tell the step times.
    """
    extra, chunk = (rules.prompt_extra_tokens, rules.chunk_tokens) if rules else (0, None)
    history = BatchHistory(log.requests, extra=extra, chunk=chunk)
    steps = fit_step_times(history)
    times = steps.times
    if not steps.decodes or times.step_s(history.batch_max, history.kv_max) <= 0:
        raise ConfigurationError(
            f"{log.name}: no request decodes for a measurable time: fit to a log with outputs of many tokens, and "
            "check the columns of first token and end"
        )
    profile, admission = _make_profile(log, name, times, history, rules)
    served = _simulate(log.requests, profile, policy)
    both = [(request, served[number]) for number, request in enumerate(log.requests) if number in served]
    first_tokens = _compare([(one.first_token_s - one.arrival_s, two.ttft_s) for one, two in both])
    whole_answers = _compare([(one.end_s - one.arrival_s, two.latency_s) for one, two in both])
    prompts = [request.input_tokens for request in log.requests]
    outputs = [request.output_tokens for request in log.requests]
    fitted_on = FittedOn(
        log=log.name,
        requests=len(log.requests),
        unserved=log.unserved,
        seconds=round(max(request.end_s for request in log.requests), 3),
        batch_max=history.batch_max,
        input_tokens_min=min(prompts),
        input_tokens_max=max(prompts),
        output_tokens_min=min(outputs),
        output_tokens_max=max(outputs),
        admission=admission,
        policy=policy,
        first_token_errors_s=first_tokens.errors,
        whole_answer_errors_s=whole_answers.errors,
    )
    return EngineFit(
        profile.model_copy(update={"fitted_on": fitted_on}),
        first_tokens,
        whole_answers,
        quantiles(steps.errors_s),
        len(log.requests) - len(both),
        (*_notes(log, times, history, derived=rules is None), *_note_misfit(first_tokens)),
    )


def _make_profile(
    log: ServerLog, name: str, times: StepSeconds, history: BatchHistory, rules: EngineProfile | None
) -> tuple[EngineProfile, str]:
    """Make the profile, still without what it was fitted on. Returns it and its rules of admission in words."""
    admission = (
        "at every step, up to the KV tokens and requests that the log had at most"
        if rules is None
        else f"the rules of the profile {rules.name}"
    )
    profile = EngineProfile(
        name=name,
        fitted=True,
        source=f"step times fitted to {log.name} by headgate simulate --fit; admission is assumed: {admission}",
        pool_tokens=ceil(_SPARE * history.kv_max) + 1,
        batch_max=history.batch_max,
        prefill_base_s=round(times.prefill_base_s, _DIGITS),
        prefill_per_token_s=round(times.prefill_per_token_s, _DIGITS),
        decode_base_s=round(times.decode_base_s, _DIGITS),
        decode_per_request_s=round(times.decode_per_request_s, _DIGITS),
        decode_per_kv_token_s=round(times.decode_per_kv_token_s, _DIGITS),
    )
    if rules is None:
        return profile, admission
    return profile.model_copy(update={name: getattr(rules, name) for name in _RULES}), admission


class _Answers(Collector):
    """Keeps the served requests, by their number in order of arrival."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.served: dict[int, SimRequest] = {}

    def on_served(self, request: SimRequest) -> None:
        self.served[int(request.request_id)] = request


def _simulate(requests: Sequence[LoggedRequest], profile: EngineProfile, policy: str) -> dict[int, SimRequest]:
    arrivals = [
        Arrival(request.arrival_s, request.tenant, request.input_tokens, request.output_tokens) for request in requests
    ]
    answers = _Answers()
    drive(arrivals, make_engine(profile, make_policy(policy, WEIGHTED_TOKENS)), answers)
    return answers.served


def _compare(pairs: Sequence[tuple[float, float]]) -> Residuals:
    """Compare seconds of the log with those of the simulation, a pair a request."""
    logged, simulated = [one for one, _ in pairs], [two for _, two in pairs]
    return Residuals(quantiles(logged), quantiles(simulated), quantiles([abs(one - two) for one, two in pairs]))


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the quantiles by their names, rounded to microseconds."""
    ordered = sorted(seconds)
    return {name: round(percentile(ordered, fraction) or 0.0, 6) for name, fraction in FRACTIONS.items()}


def _notes(log: ServerLog, times: StepSeconds, history: BatchHistory, *, derived: bool) -> list[str]:
    notes = []
    step_s = times.step_s(history.batch_max, history.kv_max)
    if not _STEP_S_MIN <= step_s <= _STEP_S_MAX:
        notes.append(
            f"A decode step of {step_s * 1e3:,.4g} ms is that of no known server: check the units of the log's times, "
            "and give them with --columns, as in ttft=NAME:ms."
        )
    if history.batch_max == 1:
        notes.append("The log's requests run one at a time, so it does not tell how a larger batch slows a step.")
    elif times.decode_per_request_s == times.decode_per_kv_token_s == 0:
        notes.append("A step seems no slower with more requests: the batch varies too little to tell.")
    if len({request.input_tokens for request in log.requests}) == 1:
        notes.append("All prompts have one length, so the log does not tell how a prompt's length slows its prefill.")
    if derived and not history.has_wait_when_full(_longest_start_s(log, times, history)):
        notes.append(
            f"No request waited while {history.batch_max} ran, so batch_max and pool_tokens of the profile are lower "
            "bounds: raise them if the server holds more, or take the rules of another profile with --engine."
        )
    return notes


def _note_misfit(first_tokens: Residuals) -> list[str]:
    """Return a note if half of the first tokens are further from the log than half of the log's median."""
    if first_tokens.errors["p50"] <= _MISFIT * first_tokens.logged["p50"]:
        return []
    return [
        "The simulated first tokens are far from the log's: the server probably computes prompts beside decodes, or "
        "admits by other rules. Do not trust the first tokens of the profile; --engine takes the rules of another one."
    ]


def _longest_start_s(log: ServerLog, times: StepSeconds, history: BatchHistory) -> float:
    """Return the seconds to a first token that a request needs at most where it waits for no room."""
    prompt = max(request.input_tokens for request in log.requests)
    return (
        _WAIT_STEPS * times.step_s(history.batch_max, history.kv_max)
        + times.prefill_base_s
        + times.prefill_per_token_s * prompt
    )
