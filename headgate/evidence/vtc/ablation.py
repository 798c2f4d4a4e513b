"""Figures 15 and 16 of the VTC paper: the size of the pool and of the requests, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.evidence.runs import apart_max, apart_plot, mean, rates_plot, service_between, spread, throughput
from headgate.evidence.vtc.play import described, played
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload

POOLS = (35_000, 65_000)
LENGTHS = (256, 512, 768)
CASES = ((POOLS[0], 512), (POOLS[1], 512), (POOLS[0], 256), (POOLS[0], 768))
SECONDS = 600
CAPACITY_TOKENS_PER_S = {256: 2300.0, 512: 1760.0, 768: 1000.0}
"""The capacity of the profile by the length of input and output in tokens, the highest of all cases. The rates of
arrivals are 2.5 to 3.5 times as high."""
WEIGHTS = {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0, "client-4": 4.0}


def both_backlogged(length: int, seed: int) -> Workload:
    """Make two clients with evenly spaced requests of `length` tokens in and out, at rates that the seed draws."""
    random = Random(f"{seed} rates")
    rate_per_s = random.uniform(2.5, 3.5) * CAPACITY_TOKENS_PER_S[length] / (2 * length)
    first = random.uniform(0.35, 0.45)
    arrivals = [
        Arrival(number / (share * rate_per_s), client, length, length)
        for client, share in (("client-1", first), ("client-2", 1 - first))
        for number in range(int(SECONDS * share * rate_per_s))
    ]
    return ListWorkload(f"{length}/{length}", arrivals)


@experiment("vtc-figure-15", "Figure 15: the size of the pool and of the requests", "VTC, section 5.4, Figure 15")
def figure_15(setting: Setting) -> Section:
    """Requests arrive until after the last sample, so that both clients are always backlogged."""
    runs = _of_pools(setting)
    apart = {case: mean(of_case, lambda run: apart_max(run, SECONDS)) for case, of_case in runs.items()}
    small, large = (apart[pool, 512] for pool in POOLS)
    lengths = {length: apart[POOLS[0], length] for length in LENGTHS}
    offered = min(_offered_load(case, of_case) for case, of_case in runs.items())
    return Section(
        text=(
            "Two clients, both backlogged, on a profile of Llama-2-13b on an A100 that is derived and **not fitted**: "
            "only orderings are compared. The authors' logs of these runs are published; this page does not compare "
            "with them yet. Each seed draws the rates of the two clients: clients with equal, evenly spaced requests "
            "lock in phase, and then the rates decide how far they drift apart, not the pool.",
            "In the paper's one run, longer requests drift further apart. The paper's explanation: admission charges "
            "only the prompts, so the client with the lowest counter is compensated too much. Here, at all three "
            "lengths, an admission ends because the batch is full and not because of the counters, so the length does "
            "not matter.",
        ),
        tables=[_table(runs)],
        checks=[
            Check(
                "with a larger pool, service drifts further apart",
                large > 1.3 * small,
                f"{small:,.0f} at {POOLS[0]:,}, {large:,.0f} at {POOLS[1]:,} tokens",
            ),
            Check(
                "with longer requests, service drifts further apart",
                None,
                "not seen: " + ", ".join(f"{length}: {value:,.0f}" for length, value in lengths.items()),
            ),
            Check("the offered load is at least 1.5 times the throughput", offered >= 1.5, f"{offered:.2f} times"),
        ],
        plots=[
            apart_plot(
                "15",
                {f"pool {pool:,}, {length}/{length}": of_case[0] for (pool, length), of_case in runs.items()},
                SECONDS,
            )
        ],
    )


def _of_pools(setting: Setting) -> dict[tuple[int, int], list[Run]]:
    profile = load_profile("a100-llama2-13b")
    jobs = [
        RunSpec(
            both_backlogged(length, seed),
            "vtc",
            profile.model_copy(update={"pool_tokens": pool, "minibatch_tokens_max": pool // 6}),
            seed=seed,
            jitter=setting.jitter,
            horizon_s=SECONDS,
            timeline=True,
        )
        for pool, length in CASES
        for seed in range(setting.seeds)
    ]
    runs = setting.map(simulate, jobs)
    return {case: runs[i * setting.seeds : (i + 1) * setting.seeds] for i, case in enumerate(CASES)}


def _offered_load(case: tuple[int, int], runs: Sequence[Run]) -> float:
    """Return requested tokens over processed tokens, per second: the least of the runs."""
    return min(run.requests * 2 * case[1] / SECONDS / throughput(run) for run in runs)


def _table(runs: dict[tuple[int, int], list[Run]]) -> Table:
    columns = ("pool (tokens)", "requests", "greatest difference", "bound 2 U of the pool", "tokens/s")
    return Table("Figure 15", columns, [_row(*case, of_case) for case, of_case in runs.items()])


def _row(pool: int, length: int, runs: Sequence[Run]) -> tuple[int, str, str, int, str]:
    apart = spread(runs, lambda run: apart_max(run, SECONDS))
    return pool, f"{length}/{length}", apart, 4 * pool, f"{mean(runs, throughput):.0f}"


@experiment("vtc-figure-16", "Figure 16: weights 1 : 2 : 3 : 4", "VTC, Appendix B.1, Figure 16")
def figure_16(setting: Setting) -> Section:
    workload = described("vtc-figure-16")
    plain = played(setting, workload, ("vtc",))["vtc"]
    weighted = played(setting, workload, ("vtc",), weights=WEIGHTS)["vtc"]
    equal_shares, weighted_shares = (_shares(runs) for runs in (plain, weighted))
    rows = [
        (name, weight, f"{equal_shares[i]:.4f}", 0.25, f"{weighted_shares[i]:.4f}", weight / 10)
        for i, (name, weight) in enumerate(WEIGHTS.items())
    ]
    return Section(
        text=("Four clients with 60 requests per minute each, 256/256: 2.3 times what the server can do.",),
        tables=[
            Table("Share of service", ("client", "weight", "vtc", "target", "weighted vtc", "target"), rows),
        ],
        checks=[
            _near("equal shares within 5 %", equal_shares, [0.25] * 4),
            _near("shares 1 : 2 : 3 : 4 within 5 %", weighted_shares, [weight / 10 for weight in WEIGHTS.values()]),
        ],
        plots=[rates_plot("16a", "vtc", plain[0], 600), rates_plot("16b", "weighted vtc", weighted[0], 600)],
    )


def _shares(runs: Sequence[Run]) -> list[float]:
    """Return the shares while all clients are backlogged: from the second minute to the last arrival."""
    services = [service_between(runs, name, 60, 600) for name in WEIGHTS]
    return [service / sum(services) for service in services]


def _near(claim: str, shares: Sequence[float], targets: Sequence[float]) -> Check:
    near = all(abs(share / target - 1) <= 0.05 for share, target in zip(shares, targets, strict=True))
    return Check(claim, near, " : ".join(f"{share:.4f}" for share in shares))
