"""Figures 15 and 16 of the VTC paper: the size of the pool and of the requests, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headgate.simulator.evidence.over_seeds import mean, over_seeds, throughput
from headgate.simulator.evidence.over_time import apart_max, apart_plot, rates_plot
from headgate.simulator.evidence.sections import Check, Section, Setting, Table, experiment
from headgate.simulator.evidence.vtc_play import described, mean_service, played
from headgate.simulator.profile import load_profile
from headgate.simulator.run import Run, RunSpec
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload

POOLS = (35_000, 65_000)
LENGTHS = (256, 512, 768)
RATES_PER_S = {256: (6.0, 10.0), 512: (3.0, 5.0), 768: (2.0, 3.4)}
"""Of the two clients; together at least 1.5 times what the profile can do at that length."""
SECONDS = 600
WEIGHTS = {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0, "client-4": 4.0}


def both_backlogged(length: int) -> Workload:
    """Two clients with evenly spaced requests of `length` tokens in and out."""
    arrivals = [
        Arrival(number / rate, f"client-{client}", length, length)
        for client, rate in enumerate(RATES_PER_S[length], 1)
        for number in range(int(SECONDS * rate))
    ]
    return ListWorkload(f"{length}/{length}", arrivals)


@experiment("vtc-figure-15")
def figure_15(setting: Setting) -> Section:
    """Requests keep coming for longer than what is looked at, so both clients are backlogged throughout."""
    profile = load_profile("a100-llama2-13b")
    cases = [(pool, 512) for pool in POOLS] + [(POOLS[0], length) for length in LENGTHS if length != 512]
    runs = over_seeds(
        setting,
        {
            (pool, length): RunSpec(
                both_backlogged(length),
                "vtc",
                profile.model_copy(update={"pool_tokens": pool, "minibatch_tokens_max": pool // 6}),
                horizon_s=SECONDS,
                timeline=True,
            )
            for pool, length in cases
        },
    )
    apart = {case: fmean(apart_max(run, SECONDS) for run in of_case) for case, of_case in runs.items()}
    by_length = [apart[POOLS[0], length] for length in LENGTHS]
    return Section(
        "Figure 15: the pool, and the length of requests",
        "VTC, section 5.4, Figure 15",
        text=(
            "Two clients, both backlogged, on a profile of Llama-2-13b on an A100 that is derived and **not fitted**: "
            "only orderings are compared. The rates are not printed in the paper; ours are at least 1.5 times the "
            "capacity at each length.",
        ),
        tables=[_table(apart, runs)],
        checks=[
            Check(
                "a larger pool lets service drift further apart",
                apart[POOLS[1], 512] > apart[POOLS[0], 512],
                f"{apart[POOLS[0], 512]:,.0f} at {POOLS[0]:,}, {apart[POOLS[1], 512]:,.0f} at {POOLS[1]:,} tokens",
            ),
            Check(
                "longer requests do, up to the bound: 256 lowest",
                by_length[0] < min(by_length[1:]),
                ", ".join(f"{length}: {value:,.0f}" for length, value in zip(LENGTHS, by_length, strict=True)),
            ),
            Check(
                "offered load is at least 1.5 times the capacity",
                all(
                    2 * length * sum(RATES_PER_S[length]) >= 1.5 * mean(of, throughput)
                    for (_, length), of in runs.items()
                ),
                ", ".join(
                    f"{2 * length * sum(RATES_PER_S[length]) / mean(of, throughput):.2f}"
                    for (_, length), of in runs.items()
                ),
            ),
        ],
        plots=[
            apart_plot(
                "vtc-figure-15",
                "Figure 15: difference of accumulated service",
                {f"pool {pool:,}, {length}/{length}": of_case[0] for (pool, length), of_case in runs.items()},
                SECONDS,
            )
        ],
    )


def _table(apart: dict[tuple[int, int], float], runs: dict[tuple[int, int], list[Run]]) -> Table:
    rows = [
        (pool, f"{length}/{length}", round(value), round(2 * pool * 2), f"{mean(runs[pool, length], throughput):.0f}")
        for (pool, length), value in apart.items()
    ]
    return Table(
        "Figure 15", ("pool (tokens)", "requests", "furthest apart", "bound 2 U of the pool", "tokens/s"), rows
    )


@experiment("vtc-figure-16")
def figure_16(setting: Setting) -> Section:
    workload = described("vtc-figure-16")
    plain = played(setting, workload, ("vtc",))["vtc"]
    weighted = played(setting, workload, ("vtc",), weights=WEIGHTS)["vtc"]
    # From a minute on, while everybody is backlogged: until the last arrival.
    equal_shares, weighted_shares = (_shares(runs) for runs in (plain, weighted))
    rows = [
        (name, weight, f"{equal_shares[i]:.4f}", 0.25, f"{weighted_shares[i]:.4f}", weight / 10)
        for i, (name, weight) in enumerate(WEIGHTS.items())
    ]
    return Section(
        "Figure 16: weights 1 : 2 : 3 : 4",
        "VTC, Appendix B.1, Figure 16",
        text=("Four clients of 60 requests a minute each, 256/256, 2.3 times what the server can do.",),
        tables=[Table("Share of service", ("client", "weight", "vtc", "due", "weighted vtc", "due"), rows)],
        checks=[
            Check("equal shares within 5 %", _near(equal_shares, [0.25] * 4), _said(equal_shares)),
            Check(
                "shares 1 : 2 : 3 : 4 within 5 %",
                _near(weighted_shares, [w / 10 for w in WEIGHTS.values()]),
                _said(weighted_shares),
            ),
        ],
        plots=[
            rates_plot("vtc-figure-16a", "Figure 16a: service received, vtc", plain[0], 600),
            rates_plot("vtc-figure-16b", "Figure 16b: service received, weighted vtc", weighted[0], 600),
        ],
    )


def _shares(runs: Sequence[Run]) -> list[float]:
    services = [mean_service(runs, name, 60, 600) for name in WEIGHTS]
    return [service / sum(services) for service in services]


def _near(shares: Sequence[float], due: Sequence[float]) -> bool:
    return all(abs(share / d - 1) <= 0.05 for share, d in zip(shares, due, strict=True))


def _said(shares: Sequence[float]) -> str:
    return " : ".join(f"{share:.4f}" for share in shares)
