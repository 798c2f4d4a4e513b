"""FairServe's case study: what rate limits, fair queueing and throttling of interactions serve, and what they waste.

The workload is made from the paper's published statistics: three applications, users and interactions.

Source: FairServe (arXiv 2411.15997), Tables 2 and 4. Given: the requests of each application, their mean prompt and
output, and the number of calls of an interaction. Our choices:
- lengths are lognormal about their means;
- a third of a prompt is the application's system prompt;
- each application has twelve users. In the two heavy applications one of them is abusive: it sends seven tenths of the
  application's interactions within the first tenth of the time. All other interactions are spread evenly;
- a stage is sent when the stage before it was answered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.throttling import ThrottleLimits
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload


@dataclass(frozen=True, slots=True)
class App:
    name: str
    requests: int
    input_tokens: int
    output_tokens: int
    abused: bool


APPS = (
    App("app-14", 269, 6_370, 102, abused=True),
    App("app-7", 139, 14_854, 74, abused=True),
    App("app-12", 448, 999, 32, abused=False),
)
_LIGHT = "app-12"
CALLS = ((1, 1, 73.2), (2, 10, 26.1), (11, 20, 0.5), (21, 30, 0.1))
"""Calls per interaction (from, to), and the percentage of requests that belong to such interactions."""
_SECONDS = 60.0
_USERS = 12
_ABUSE_SHARE, _ABUSE_WITHIN = 0.7, 0.1
_SYSTEM_SHARE = 1 / 3
_SIGMA = 0.4
"""Standard deviation of the logarithm of a length."""


def case_study(seed: int) -> Workload:
    random = Random(f"{seed} fairserve")
    arrivals = [arrival for app in APPS for arrival in _arrivals_of(random, app)]
    return ListWorkload("fairserve", sorted(arrivals, key=lambda arrival: (arrival.arrival_s, arrival.stage)))


def _arrivals_of(random: Random, app: App) -> Iterator[Arrival]:
    """Yield interactions until the application has all its requests; the last interaction is shortened to fit."""
    left, number = app.requests, 0
    while left:
        calls = min(left, _calls(random))
        left -= calls
        is_abuse = app.abused and random.random() < _ABUSE_SHARE
        user = 0 if is_abuse else random.randrange(1 if app.abused else 0, _USERS)
        at_s = random.uniform(0, _SECONDS * (_ABUSE_WITHIN if is_abuse else 1.0))
        for stage in range(calls):
            yield _call(random, app, f"{app.name}-user-{user}", f"{app.name}-{number}", at_s, stage)
        number += 1


def _calls(random: Random) -> int:
    """Draw the calls of an interaction. CALLS has shares of requests, so an interaction of k calls has weight 1 / k."""
    weights = [share / ((low + high) / 2) for low, high, share in CALLS]
    low, high, _ = random.choices(CALLS, weights)[0]
    return random.randint(low, high)


def _call(random: Random, app: App, user: str, interaction: str, at_s: float, stage: int) -> Arrival:
    inputs, outputs = (
        max(1, round(mean * random.lognormvariate(-(_SIGMA**2) / 2, _SIGMA)))
        for mean in (app.input_tokens, app.output_tokens)
    )
    system = round(inputs * _SYSTEM_SHARE)
    return Arrival(
        at_s, user, inputs, outputs, interaction=interaction, stage=stage, app=app.name, system_tokens=system
    )  # fmt: skip


_ENGINE = "a100-llama3-8b-chunked"
TIMEOUT_S = 60.0
"""The deadline of all requests, in seconds from the first arrival. A request that ends later was not served."""
RPM = 60
_LIMITS = ThrottleLimits(user=15, app=150)
"""They can be lower than an RPM limit, because they apply only while the fleet is full."""
OIT = "wsc + throttling"
POLICIES = {f"rpm:{RPM}": f"rpm:{RPM}", "vtc": "vtc", "wsc": "wsc", OIT: "wsc"}
_PRINTED = {f"rpm:{RPM}": (56, 4, 2), "vtc": (37, 29, 73), "wsc": (37, 29, 73), OIT: (37, 27, 80)}
"""Table 4: requests served of applications 14, 7 and 12."""


@dataclass(frozen=True, slots=True)
class CaseCounts:
    """The counts of one run.

    `served`, `prompt_tokens_per_s`: by application. `cut`: interactions that were refused after their first call was
    answered. `wasted`: tokens of their answered calls. `unfinished`: tokens of the answered calls of interactions that
    the timeout ended.
    """

    served: dict[str, int]
    prompt_tokens_per_s: dict[str, float]
    finished: int
    begun: int
    refused: int
    cut: int
    wasted: int
    unfinished: int


class CaseRequests(Collector):
    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.answered: list[SimRequest] = []
        self.refused: list[SimRequest] = []

    def on_served(self, request: SimRequest) -> None:
        (self.answered if request.finish_s <= TIMEOUT_S else self.refused).append(request)

    def on_rejected(self, request: SimRequest) -> None:
        self.refused.append(request)


CaseJob = tuple[str, int, float]
"""A name of POLICIES, a seed, and the jitter of step times."""


def play_case(job: CaseJob) -> CaseRequests:
    """Play the case study once, and return all its requests."""
    name, seed, jitter = job
    spec = RunSpec(case_study(seed), POLICIES[name], load_profile(_ENGINE), seed=seed, jitter=jitter)
    ended = CaseRequests()
    simulate(replace(spec, throttling=_LIMITS if name == OIT else None), ended)
    return ended


def play(job: CaseJob) -> CaseCounts:
    """Play the case study once, and count. A job for Setting.map."""
    return _outcome(play_case(job))


def _outcome(ended: CaseRequests) -> CaseCounts:
    answered: defaultdict[str, list[SimRequest]] = defaultdict(list)
    for request in ended.answered:
        answered[request.arrival.interaction or ""].append(request)
    late = {request.arrival.interaction or "" for request in ended.refused}
    cut = {
        request.arrival.interaction or ""
        for request in ended.refused
        if request.rejected not in (None, "unsent") and request.arrival.stage
    }
    tokens = {name: sum(r.arrival.input_tokens + r.arrival.output_tokens for r in of) for name, of in answered.items()}
    prompts: Counter[str] = Counter()
    for request in ended.answered:
        prompts[request.arrival.app or ""] += request.arrival.input_tokens
    return CaseCounts(
        served=dict(Counter(request.arrival.app or "" for request in ended.answered)),
        prompt_tokens_per_s={app: count / TIMEOUT_S for app, count in prompts.items()},
        finished=len(answered.keys() - late),
        begun=len(answered),
        refused=sum(request.rejected not in (None, "unsent") for request in ended.refused),
        cut=len(cut),
        wasted=sum(tokens.get(name, 0) for name in cut),
        unfinished=sum(tokens[name] for name in answered.keys() & late - cut),
    )


@experiment("fairserve", "Three applications, abusive users, interactions", "FairServe, section 5.5, Table 4")
def fairserve(setting: Setting) -> Section:
    jobs = [(name, seed, setting.jitter) for name in POLICIES for seed in range(1, setting.seeds + 1)]
    played = iter(setting.map(play, jobs))
    runs = {name: [next(played) for _ in range(setting.seeds)] for name in POLICIES}
    return Section(
        text=(
            "The trace is not public. The workload is made from the published statistics "
            "(headgate/evidence/fairserve.py says which choices are ours) and runs on "
            f"`{_ENGINE}`, a profile that is derived and **not fitted**. Requests arrive for {_SECONDS:.0f} s; "
            f"requests that end after {TIMEOUT_S:.0f} s were not served. RPM allows {RPM} "
            f"requests per minute and user. The throttling allows {_LIMITS.user} per user and {_LIMITS.app} per "
            "application; it applies only while at least 90 % of the KV pool is in use, and never within an "
            f"interaction. Means over {setting.seeds} seeds.",
            "The printed counts are of another machine with another load, so only orderings and ratios are compared.",
        ),
        tables=[_requests_table(runs), _interactions(runs)],
        checks=_checks(runs),
    )


_Runs = dict[str, list[CaseCounts]]


def _of_app(runs: Sequence[CaseCounts], app: str) -> float:
    return fmean(run.served.get(app, 0) for run in runs)


def _lost_tokens(runs: Sequence[CaseCounts]) -> float:
    """Return the mean tokens that were spent on interactions that never finish."""
    return fmean(run.wasted + run.unfinished for run in runs)


def _finished_part(runs: Sequence[CaseCounts]) -> float:
    return sum(run.finished for run in runs) / sum(run.begun for run in runs)


def _requests_table(runs: _Runs) -> Table:
    of_app = ("paper", "ours", "prompt tokens/s")
    columns = ("scheduler", *(f"{app.name}: {what}" for app in APPS for what in of_app))
    rows = []
    for name, of_name in runs.items():
        cells: list[Cell] = [name]
        for app, printed in zip(APPS, _PRINTED[name], strict=True):
            speed = fmean(run.prompt_tokens_per_s.get(app.name, 0.0) for run in of_name)
            cells += [printed, f"{_of_app(of_name, app.name):.1f}", f"{speed:.0f}"]
        rows.append(tuple(cells))
    sent = ", ".join(f"{app.requests} of {app.name}" for app in APPS)
    return Table(f"Requests served, of {sent}", columns, rows)


def _interactions(runs: _Runs) -> Table:
    counts = {
        "interactions finished": "finished",
        "interactions begun": "begun",
        "requests refused": "refused",
        "interactions cut": "cut",
        "tokens wasted on cut interactions": "wasted",
        "tokens of interactions that the timeout ended": "unfinished",
    }
    rows = [
        (name, *(f"{fmean(getattr(run, key) for run in of_name):,.1f}" for key in counts.values()))
        for name, of_name in runs.items()
    ]
    return Table("Interactions", ("scheduler", *counts), rows)


def _checks(runs: _Runs) -> list[Check]:
    rpm, throttled = runs[f"rpm:{RPM}"], runs[OIT]
    light = {name: _of_app(of_name, _LIGHT) for name, of_name in runs.items()}
    return [
        Check(
            "wsc + throttling: no interaction is cut",
            not any(run.cut for run in throttled),
            f"{sum(run.cut for run in throttled)} in {len(throttled)} runs; RPM cuts {sum(r.cut for r in rpm)}",
        ),
        Check(
            "wsc + throttling: no token is wasted on interactions that it refuses",
            not any(run.wasted for run in throttled),
            f"{sum(run.wasted for run in throttled):,}; RPM wastes {fmean(run.wasted for run in rpm):,.0f} a run",
        ),
        Check(
            "RPM wastes tokens on interactions that it cuts",
            any(run.wasted for run in rpm),
            f"in {sum(run.wasted > 0 for run in rpm)} of {len(rpm)} runs; the paper has 15,660 in the mean",
        ),
        Check(
            "wsc + throttling serves at least three times as many requests of the light application as RPM",
            light[OIT] >= 3 * light[f"rpm:{RPM}"],
            ", ".join(f"{name} {count:.1f}" for name, count in light.items()),
        ),
        Check(
            "vtc and wsc without throttling do so too",
            min(light["vtc"], light["wsc"]) >= 3 * light[f"rpm:{RPM}"],
            f"vtc {light['vtc']:.1f}, wsc {light['wsc']:.1f}",
        ),
        Check(
            "the throttling refuses requests while the cache is full (section 4.2)",
            any(run.refused for run in throttled),
            f"{fmean(run.refused for run in throttled):.1f} a run, in {sum(run.refused > 0 for run in throttled)} of "
            f"{len(throttled)} runs",
        ),
        Check(
            "wsc finishes more of the interactions that it begins than vtc, by a point: those in progress go first",
            _finished_part(runs["wsc"]) >= _finished_part(runs["vtc"]) + 0.01,
            f"wsc {_finished_part(runs['wsc']):.1%}, vtc {_finished_part(runs['vtc']):.1%}",
        ),
        Check(
            "with throttling, fewer tokens are spent on interactions that never finish than under vtc",
            _lost_tokens(runs[OIT]) < _lost_tokens(runs["vtc"]),
            ", ".join(f"{name} {_lost_tokens(of):,.0f}" for name, of in runs.items()),
            "under vtc only the end of the run ends interactions early",
        ),
    ]
