"""The workload of FairServe's case study, from its published statistics: three applications, users and interactions.

Source: FairServe (arXiv 2411.15997), Tables 2 and 4. Given: the requests of each application, their mean prompt and
output, and the number of calls of an interaction. Our choices:
- lengths are lognormal about their means;
- a third of a prompt is the application's system prompt;
- each application has twelve users. In the two heavy applications one of them is abusive: it sends seven tenths of the
  application's interactions within the first tenth of the time. All other interactions are spread evenly;
- a stage is sent when the stage before it was answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

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
LIGHT = "app-12"
CALLS = ((1, 1, 73.2), (2, 10, 26.1), (11, 20, 0.5), (21, 30, 0.1))
"""Calls per interaction (from, to), and the percentage of requests that belong to such interactions."""
SECONDS = 60.0
USERS = 12
ABUSE_SHARE, ABUSE_WITHIN = 0.7, 0.1
SYSTEM_SHARE = 1 / 3
SIGMA = 0.4
"""Standard deviation of the logarithm of a length."""


def case_study(seed: int) -> Workload:
    random = Random(f"{seed} fairserve")
    arrivals = [arrival for app in APPS for arrival in _of_app(random, app)]
    return ListWorkload("fairserve", sorted(arrivals, key=lambda arrival: (arrival.arrival_s, arrival.stage)))


def _of_app(random: Random, app: App) -> Iterator[Arrival]:
    """Yield interactions until the application has all its requests; the last interaction is shortened to fit."""
    left, number = app.requests, 0
    while left:
        calls = min(left, _calls(random))
        left -= calls
        is_abuse = app.abused and random.random() < ABUSE_SHARE
        user = 0 if is_abuse else random.randrange(1 if app.abused else 0, USERS)
        at_s = random.uniform(0, SECONDS * (ABUSE_WITHIN if is_abuse else 1.0))
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
        max(1, round(mean * random.lognormvariate(-(SIGMA**2) / 2, SIGMA)))
        for mean in (app.input_tokens, app.output_tokens)
    )
    system = round(inputs * SYSTEM_SHARE)
    return Arrival(
        at_s, user, inputs, outputs, interaction=interaction, stage=stage, app=app.name, system_tokens=system
    )  # fmt: skip
