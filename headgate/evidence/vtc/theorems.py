"""The theorems of the VTC paper on runs: the worst case of each as a fraction of its bound, and schedulers that break
them.

Theorem 4.8 has an adversary: no work-conserving, non-preemptive scheduler can be fairer. One client sends a batch of
requests while no other request is there, so a work-conserving scheduler must admit them all. Right after that the other
client begins to send, and it receives nothing until they end. The service of the first client in that time is nearly
w_q M, with M the tokens of the batch: only the inputs are missing, and an input can be one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.evidence.runs import over_seeds
from headgate.evidence.vtc.play import workload_of
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload

THEOREMS = ("4.3", "4.4", "4.9", "4.11", "4.13")
_TRACES = ("real", "overload", "overload-multi")
_RANDOM_WORKLOADS = 200
_WEIGHTS = (1.0, 1.0, 2.0, 5.0)
_BATCHES = (9, 101, 303)
"""Numbers of requests that fill the pool at once. They divide its 9,999 usable tokens, so that no space is left."""

_Runs = Mapping[str, Sequence[Run]]


def _random_workload(seed: int) -> Workload:
    """Draw two to eight clients that come and go, with lengths and rates over three orders of magnitude."""
    random = Random(f"{seed} workload")
    arrivals = []
    for client in range(random.randint(2, 8)):
        begin_s = random.uniform(0, 60)
        inputs, outputs = (2 ** random.uniform(0, 9) for _ in range(2))
        for _ in range(random.randint(1, 120)):
            begin_s += random.expovariate(2 ** random.uniform(-3, 3))
            tokens = (1 + int(random.uniform(0, 2) * inputs), int(random.uniform(0, 2) * outputs))
            arrivals.append(Arrival(begin_s, f"client-{client}", *tokens))
    return ListWorkload("random", sorted(arrivals, key=lambda arrival: arrival.arrival_s))


def random_specs(weighted: bool, policy: str) -> list[RunSpec]:
    profile = load_profile()
    specs = []
    for seed in range(_RANDOM_WORKLOADS):
        workload = _random_workload(seed)
        random = Random(f"{seed} weights")
        weights = {name: random.choice(_WEIGHTS) for name in workload.tenants} if weighted else {}
        pool = random.choice((1_500, 4_000, 10_000))
        engine = profile.model_copy(update={"pool_tokens": pool})
        specs.append(RunSpec(workload, policy, engine, weights=weights, seed=seed, horizon_s=0.0, monitor="any"))
    return specs


@experiment("vtc-theorems", "The theorems, on runs", "VTC, section 4: Lemma 4.3, Theorems 4.4, 4.9, 4.11, 4.13")
def theorems(setting: Setting) -> Section:
    runs: dict[str, Sequence[Run]] = {}
    for name, weighted, policy in (("vtc", False, "vtc"), ("vtc, weights", True, "vtc"), ("fcfs", False, "fcfs")):
        runs[f"{name}, random"] = setting.map(simulate, random_specs(weighted, policy))
    if setting.traces is not None:
        runs |= over_seeds(setting, _of_traces(setting))
    vtc = {name: of_name for name, of_name in runs.items() if name.startswith("vtc")}
    fcfs = {name: of_name for name, of_name in runs.items() if name.startswith("fcfs")}
    return Section(
        text=(
            "Each cell is the worst case of all runs as a fraction of the theorem's bound, over every moment or "
            "interval that the theorem covers. In the paper's notation, U = max(w_p L_input, w_q M); M is measured in "
            f"the run (headgate/simulator/measures/theorems.py explains why). Random: {_RANDOM_WORKLOADS} workloads of "
            f"2 to 8 clients, pools of 1,500 to 10,000 tokens. Traces: {setting.seeds} runs with jittered steps. "
            "Weights: 1, 2 and 5, and service is divided by the weight. The theorems do not cover fcfs; that fcfs "
            "breaks their bounds shows that the checks can fail. With the size of the pool for M, Lemma 4.3 would not "
            f"hold in {_count_beyond_the_pool(runs['vtc, random'])} of the random runs.",
        ),
        tables=[_table(runs)],
        checks=[
            *(_holds(theorem, vtc) for theorem in THEOREMS),
            *(_broken(theorem, fcfs) for theorem in ("4.3", "4.4")),
        ],
    )


def _of_traces(setting: Setting) -> dict[str, RunSpec]:
    return {
        f"{policy}, {trace}": RunSpec(
            workload_of(setting.traces_folder, trace, policy), policy, load_profile(), horizon_s=0.0, monitor="any"
        )
        for trace in _TRACES
        for policy in ("vtc", "fcfs")
    }


def _table(runs: _Runs) -> Table:
    rows = [(name, len(of_name), *(_worst(theorem, of_name) for theorem in THEOREMS)) for name, of_name in runs.items()]
    return Table("Worst case as a fraction of the bound", ("scheduler, workload", "runs", *THEOREMS), rows)


def _worst(theorem: str, runs: Sequence[Run]) -> float | None:
    fractions = [run.bounds[theorem]["fraction"] for run in runs]
    return max((fraction for fraction in fractions if fraction is not None), default=None)


def _holds(theorem: str, runs: _Runs) -> Check:
    bounds = [run.bounds[theorem] for of_name in runs.values() for run in of_name]
    comparisons = sum(bound["checked"] for bound in bounds)
    worst = max(bound["fraction"] or 0.0 for bound in bounds)
    return Check(
        f"vtc: {theorem} holds in every run",
        all(bound["held"] for bound in bounds) and comparisons > 0,
        f"{len(bounds)} runs, {comparisons:,} comparisons, at most {worst:.3f} of the bound",
    )


def _count_beyond_the_pool(runs: Sequence[Run]) -> int:
    """Count the runs that would break 4.3 with the pool for M. All inputs are smaller, so U = w_q times the pool."""
    return sum(run.bounds["4.3"]["worst"] > 2.0 * run.pool_tokens for run in runs)


def _broken(theorem: str, runs: _Runs) -> Check:
    broken = sum(not run.bounds[theorem]["held"] for of_name in runs.values() for run in of_name)
    total = sum(len(of_name) for of_name in runs.values())
    return Check(f"fcfs breaks {theorem}", broken > 0, f"in {broken} of {total} runs")


def adversary(profile: EngineProfile, requests: int) -> Workload:
    """Make `requests` requests of client f that fill the pool, up to a remainder of the division; inputs of one token.

    During their prefill, one more request of each client arrives: g and f. From then on both are backlogged.
    """
    output_tokens = (profile.pool_tokens - profile.tenant_tokens - 1) // requests - 1 - profile.prompt_extra_tokens
    during_prefill_s = profile.prefill_s(1)
    arrivals = [Arrival(0.0, "f", 1, output_tokens) for _ in range(requests)]
    arrivals += [Arrival(during_prefill_s, client, 1, output_tokens) for client in "gf"]
    return ListWorkload("adversary", arrivals)


@experiment("vtc-adversary", "No work-conserving scheduler can be fairer", "VTC, Theorem 4.8")
def tightness(setting: Setting) -> Section:
    profile = load_profile().model_copy(update={"tenant_tokens": 0})
    specs = [
        RunSpec(adversary(profile, batch), policy, profile, horizon_s=0.0, monitor="any")
        for batch in _BATCHES
        for policy in ("vtc", "fcfs", "lcf")
    ]
    rows = [_first_batch_row(spec, run) for spec, run in zip(specs, setting.map(simulate, specs), strict=True)]
    least = min(reached / bound for *_, reached, bound in rows)
    return Section(
        text=(
            "One client sends a batch that fills the pool, with inputs of one token, while no other request is there. "
            "Right after that another client sends a request, which waits until the batch ends. The difference in "
            "service while both are backlogged is w_q (M - inputs), under every scheduler. So the bound "
            "of Theorem 4.4 is at most twice the best possible bound. The theorem is about the scheduler, so the pool "
            "has no room set apart for the tenants' adapters, which the measured server keeps.",
        ),
        tables=[
            Table(
                "Difference in service reached",
                ("scheduler", "requests", "M (tokens)", "reached", "w_q (M - inputs)", "fraction"),
                [(*row, f"{row[3] / row[4]:.3f}") for row in rows],
            )
        ],
        checks=[
            Check(
                "a limit: the adversary reaches at least 95 % of w_q (M - inputs)",
                least >= 0.95,
                f"{least:.3f} at least",
            ),
        ],
    )


def _first_batch_row(spec: RunSpec, run: Run) -> tuple[str, int, int, float, float]:
    """Return the scheduler, requests and tokens of f's first batch, the difference in service, and w_q (M - inputs)."""
    batch = [arrival for arrival in spec.workload if not arrival.arrival_s]
    outputs = sum(arrival.output_tokens for arrival in batch)
    tokens = len(batch) + outputs
    return spec.policy, len(batch), tokens, run.bounds["4.4"]["worst"], 2.0 * outputs
