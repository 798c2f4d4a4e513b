"""Section 7.1 of the practitioner's design: how often one request may be preempted, and what follows then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.preemption import scene
from headgate.simulator.run import Run

_LIMITS = (0, 1, 2, 3)
"""The source advises 2 or 3."""
_UNLIMITED = 1_000_000
_ROUNDS = 200
"""Premium requests of the adversary, one after another."""
_SECONDS = 30.0
_SEEDS_MAX = 10
_LOAD = {"premium": 0.6, "standard": 0.3, "background": 0.5}
"""Arrivals by tier, as parts of the capacity."""


@experiment("preemption-limits", "Limits on the preemptions of a request", f"{scene.SOURCE}, section 7.1")
def preemption_limits(setting: Setting) -> Section:
    attacked = {limit: count_evictions(TierSettings(preemptions_max=limit)) for limit in (*_LIMITS, _UNLIMITED)}
    runs = _play(setting)
    return Section(
        text=(
            f"An adversary sends {_ROUNDS} premium requests, one after another, to a batch of one slot in which a "
            "background request runs; each that may evict it does. Then the same limits under load: premium at 0.6, "
            f"standard at 0.3 and background at 0.5 times the capacity for {_SECONDS:.0f} s, on an engine that cannot "
            f"swap, so that every preemption computes its tokens again; {min(setting.seeds, _SEEDS_MAX)} seeds. "
            f"{scene.RULE}",
        ),
        tables=[_attack_table(attacked), _load_table(runs)],
        checks=[*_attack_checks(attacked), *_load_checks(runs)],
    )


def count_evictions(settings: TierSettings, rounds: int = _ROUNDS) -> int:
    """Return how often a background request is evicted by premium requests that come one after another."""
    queue = make_policy("tiered:vtc", tiers=replace(settings, shares={}))
    if not isinstance(queue, TieredQueue):
        raise TypeError("tiered:vtc makes a queue with tiers")
    queue.enqueue(QueueRequest("victim", "batch", 100, 1.0, tier=Tier.BACKGROUND), 0.0)
    queue.admit("victim")
    for number in range(rounds):
        premium = QueueRequest(f"premium-{number}", "paying", 100, 1.0, tier=Tier.PREMIUM)
        queue.enqueue(premium, float(number))
        if queue.precedence(premium, "victim") is not None:
            queue.preempt("victim")
            queue.admit(premium.request_id)
            queue.finish(premium.request_id)
            queue.admit("victim")
        else:
            queue.cancel(premium.request_id)
    return queue.tier_state("victim").preemptions


def _play(setting: Setting) -> Mapping[int, Sequence[Run]]:
    profile = scene.load_engine(copy_out_bytes_per_s=0.0, copy_in_bytes_per_s=0.0)
    capacity = scene.capacity_per_s(profile)
    rates = {tier: part * capacity for tier, part in _LOAD.items()}
    workloads = [scene.draw_steady(seed, rates, _SECONDS) for seed in range(min(setting.seeds, _SEEDS_MAX))]
    settings: scene.Settings = {
        str(limit): ("tiered:vtc", TierSettings(preemptions_max=limit), None) for limit in (*_LIMITS, _UNLIMITED)
    }
    runs = scene.play(setting, workloads, settings, dict.fromkeys(settings, profile))
    return {int(name): of_name for name, of_name in runs.items()}


def _name(limit: int) -> str:
    return "none" if limit == _UNLIMITED else str(limit)


def _attack_table(attacked: Mapping[int, int]) -> Table:
    return Table("Preemptions of one request", ("limit", "preempted"), [(_name(x), n) for x, n in attacked.items()])


def _load_table(runs: Mapping[int, Sequence[Run]]) -> Table:
    columns = ("limit", "preempted/min", "computed again", "tokens/s", "premium's P99", "background's P99")
    rows: list[tuple[Cell, ...]] = [
        (
            _name(limit),
            scene.evictions_per_min(of_limit),
            f"{_computed_again(of_limit):.1%}",
            round(scene.tokens_per_s(of_limit)),
            scene.ms(scene.p99_ttft_s(of_limit, "premium")),
            scene.ms(scene.p99_ttft_s(of_limit, "background")),
        )
        for limit, of_limit in runs.items()
    ]
    return Table("Under load, without swapping", columns, rows)


def _computed_again(runs: Sequence[Run]) -> float:
    """Return the tokens that were computed again, as a part of all tokens of served requests."""
    return fmean(
        scene.scheduling(run).recomputed_tokens / (run.throughput_tokens_per_s * run.total_time_s) for run in runs
    )


def _attack_checks(attacked: Mapping[int, int]) -> list[Check]:
    return [
        Check(
            "a request is preempted as often as the limit says and no more, whatever arrives",
            all(attacked[limit] == limit for limit in _LIMITS),
            ", ".join(f"{_name(limit)}: {attacked[limit]}" for limit in _LIMITS),
        ),
        Check(
            "without a limit each premium request evicts it",
            attacked[_UNLIMITED] == _ROUNDS,
            f"{attacked[_UNLIMITED]} times",
        ),
    ]


def _load_checks(runs: Mapping[int, Sequence[Run]]) -> list[Check]:
    limit = 3
    pairs = zip(runs[limit], runs[0], strict=True)
    saving = scene.above(
        "a limit of 3 saves work: part of the tokens that is computed again",
        ("without a limit", runs[_UNLIMITED]),
        ("a limit of 3", runs[limit]),
        lambda run: _computed_again([run]),
    )
    return [
        replace(saving, reason=_NO_SAVING),
        scene.holds(
            "premium still goes first: with a limit of 3 its P99 is at most half of that without preemption",
            [scene.p99_ttft_s([limited], "premium") / scene.p99_ttft_s([never], "premium") for limited, never in pairs],
            lambda part: part <= 0.5,
            "{:.3f} of it".format,
        ),
    ]


_NO_SAVING = (
    "few requests are evicted more than three times: a limit of 3 prevents one of eighteen evictions, and a limit of 1 "
    "four of ten, which saves three tenths of the work (the table above)"
)
