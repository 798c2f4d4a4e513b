"""Figures 3 to 10 of the VTC paper: synthetic workloads, what each is meant to show, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from statistics import fmean

from headgate.simulator.evidence.over_seeds import over_seeds
from headgate.simulator.evidence.over_time import (
    apart_max,
    apart_plot,
    rates_plot,
    response_between,
    response_plot,
    service_between,
)
from headgate.simulator.evidence.sections import Check, Section, Setting, experiment
from headgate.simulator.evidence.vtc_traces import skipped, workload_of
from headgate.simulator.profile import EngineProfile, load_profile
from headgate.simulator.run import Run, RunSpec
from headgate.workloads.sources import Workload, open_workload

Runs = Mapping[str, Sequence[Run]]
APART_MAX = 40_000.0
"""2 U of Theorem 4.4 with the pool of 10,000 tokens, service units."""


def described(name: str) -> Workload:
    """A workload that comes with headgate; `headgate simulate` plays the same file."""
    with as_file(files("headgate.simulator.evidence") / "workloads" / f"{name}.yaml") as path:
        return open_workload([str(path)])


def played(
    setting: Setting,
    workload: Workload,
    policies: Sequence[str] = ("vtc", "fcfs"),
    *,
    profile: EngineProfile | None = None,
    weights: Mapping[str, float] | None = None,
) -> dict[str, list[Run]]:
    engine = profile or load_profile()
    return over_seeds(
        setting,
        {
            policy: RunSpec(
                workload, policy, engine, weights=weights or {}, horizon_s=workload.last_arrival_s, timeline=True
            )
            for policy in policies
        },
    )


def mean_service(runs: Sequence[Run], tenant: str, from_s: float, to_s: float) -> float:
    return fmean(service_between(run, tenant, from_s, to_s) for run in runs)


def mean_response(runs: Sequence[Run], tenant: str, from_s: float, to_s: float) -> float:
    return fmean(response_between(run, tenant, from_s, to_s) for run in runs)


def bounded_under_vtc(runs: Runs, to_s: float, factor: float = 3.0) -> list[Check]:
    """The worst seed of vtc stays within its bound, and fcfs is well beyond what vtc does."""
    vtc = [apart_max(run, to_s) for run in runs["vtc"]]
    fcfs = [apart_max(run, to_s) for run in runs["fcfs"]]
    return [
        Check(
            "vtc: accumulated service never more than 40,000 apart", max(vtc) <= APART_MAX, f"{max(vtc):,.0f} at most"
        ),
        Check(
            f"fcfs drifts apart, at least {factor:g} times as far",
            fmean(fcfs) >= factor * fmean(vtc),
            f"fcfs {fmean(fcfs):,.0f}, vtc {fmean(vtc):,.0f}",
        ),
    ]


def equal(what: str, values: Sequence[float], tolerance: float = 0.05) -> Check:
    low, high = min(values), max(values)
    return Check(
        f"{what} within {tolerance:.0%}", high <= low * (1 + tolerance), " : ".join(f"{v:,.0f}" for v in values)
    )


def prompt(what: str, seconds: float, most_s: float) -> Check:
    return Check(f"{what} below {most_s:g} s", seconds < most_s, f"{seconds:.2f} s")


@experiment("vtc-figure-3")
def figure_3(setting: Setting) -> Section:
    title, source = "Figure 3: two clients, both over their share", "VTC, section 5.2, Figure 3"
    if setting.traces is None:
        return skipped(title, source)
    runs = played(setting, workload_of(setting.traces, "overload", "vtc"))
    both = [mean_service(runs["vtc"], tenant, 60, 360) for tenant in runs["vtc"][0].tenants]
    return Section(
        title,
        source,
        text=("90 and 180 requests a minute, 256/256, for 360 s.",),
        checks=[equal("vtc: both receive the same", both), *bounded_under_vtc(runs, 360)],
        plots=[
            apart_plot("vtc-figure-3a", "Figure 3a: difference of accumulated service", _first(runs), 360),
            rates_plot("vtc-figure-3b", "Figure 3b: service received, vtc", runs["vtc"][0], 360),
        ],
    )


@experiment("vtc-figure-4")
def figure_4(setting: Setting) -> Section:
    title, source = "Figure 4: two clients under their share, one over it", "VTC, section 5.2, Figure 4"
    if setting.traces is None:
        return skipped(title, source)
    runs = played(setting, workload_of(setting.traces, "proportional", "vtc"))
    names = sorted(runs["vtc"][0].tenants, key=lambda name: runs["vtc"][0].tenants[name].requests)
    slow, middle, greedy = names
    to_s = runs["vtc"][0].total_time_s
    ratio = mean_service(runs["vtc"], middle, 60, 540) / mean_service(runs["vtc"], slow, 60, 540)
    share = mean_service(runs["vtc"], greedy, 60, 540) / sum(mean_service(runs["vtc"], name, 60, 540) for name in names)
    isolated = [mean_response(runs["vtc"], name, 0, 600) for name in (slow, middle)]
    return Section(
        title,
        source,
        text=("15, 30 and 90 requests a minute, 256/256, for 600 s.",),
        checks=[
            prompt("vtc: the slow client's mean time to first token", isolated[0], 2.0),
            prompt("vtc: the middle client's mean time to first token", isolated[1], 2.0),
            Check(
                "fcfs lets both wait at least five times as long",
                all(
                    mean_response(runs["fcfs"], n, 0, 600) > 5 * r
                    for n, r in zip((slow, middle), isolated, strict=True)
                ),
                ", ".join(f"{mean_response(runs['fcfs'], name, 0, 600):.1f} s" for name in (slow, middle)),
            ),
            Check("vtc: service of the first two is 1 : 2 within 5 %", abs(ratio / 2 - 1) < 0.05, f"1 : {ratio:.3f}"),
            Check("vtc: the third takes what they leave, more than a third", share > 1 / 3, f"{share:.3f}"),
        ],
        plots=[
            rates_plot("vtc-figure-4a", "Figure 4a: service received, vtc", runs["vtc"][0], min(to_s, 600)),
            response_plot("vtc-figure-4b", "Figure 4b: time to first token", _first(runs), 600),
        ],
    )


@experiment("vtc-figure-5")
def figure_5(setting: Setting) -> Section:
    runs = played(setting, described("vtc-figure-5"))
    vtc = runs["vtc"]
    totals = [
        sum(mean_service(vtc, name, start, start + 60) for name in vtc[0].tenants) for start in range(60, 600, 60)
    ]
    response = mean_response(vtc, "client-1", 0, 600)
    return Section(
        "Figure 5: comes and goes, under its share",
        "VTC, section 5.2, Figure 5",
        text=("Client 1: 30 requests a minute in alternating minutes; client 2: 120 all the time; 256/256, 600 s.",),
        checks=[
            prompt("vtc: client 1's mean time to first token", response, 2.0),
            Check(
                "fcfs lets it wait at least five times as long",
                mean_response(runs["fcfs"], "client-1", 0, 600) > 5 * response,
                f"{mean_response(runs['fcfs'], 'client-1', 0, 600):.1f} s",
            ),
            equal("work conserving: total service, minute by minute,", totals, 0.15),
        ],
        plots=[
            rates_plot("vtc-figure-5a", "Figure 5a: service received, vtc", vtc[0], 600),
            response_plot("vtc-figure-5b", "Figure 5b: time to first token", _first(runs), 600),
        ],
    )


@experiment("vtc-figure-6")
def figure_6(setting: Setting) -> Section:
    runs = played(setting, described("vtc-figure-6"))
    both = [mean_service(runs["vtc"], name, 60, 600) for name in ("client-1", "client-2")]
    return Section(
        "Figure 6: comes and goes, over its share",
        "VTC, section 5.2, Figure 6",
        text=("Client 1: 120 requests a minute in alternating minutes; client 2: 180 all the time; 256/256, 600 s.",),
        checks=[equal("vtc: both receive the same", both), *bounded_under_vtc(runs, 600)],
        plots=[
            rates_plot("vtc-figure-6a", "Figure 6a: service received, vtc", runs["vtc"][0], 600),
            response_plot("vtc-figure-6b", "Figure 6b: time to first token", _first(runs), 600),
        ],
    )


@experiment("vtc-figure-7")
def figure_7(setting: Setting) -> Section:
    title, source = "Figure 7: short requests against long ones, Poisson", "VTC, section 5.2, Figure 7"
    if setting.traces is None:
        return skipped(title, source)
    text = "480 requests a minute of 64/64 against 90 of 256/256, Poisson."
    return _uneven(title, source, text, "7", played(setting, workload_of(setting.traces, "poisson_short_long", "vtc")))


@experiment("vtc-figure-8")
def figure_8(setting: Setting) -> Section:
    text = "480 requests a minute of 64/512 against 90 of 512/64, Poisson, 600 s."
    title = "Figure 8: long answers against long prompts, Poisson"
    return _uneven(title, "VTC, section 5.2, Figure 8", text, "8", played(setting, described("vtc-figure-8")))


def _uneven(title: str, source: str, text: str, number: str, runs: dict[str, list[Run]]) -> Section:
    both = [mean_service(runs["vtc"], tenant, 60, 540) for tenant in runs["vtc"][0].tenants]
    return Section(
        title,
        source,
        text=(text,),
        checks=[equal("vtc: both receive the same", both), *bounded_under_vtc(runs, 600)],
        plots=[
            rates_plot(f"vtc-figure-{number}a", f"Figure {number}a: service received, vtc", runs["vtc"][0], 600),
            apart_plot(
                f"vtc-figure-{number}b", f"Figure {number}b: difference of accumulated service", _first(runs), 600
            ),
        ],
    )


@experiment("vtc-figure-9")
def figure_9(setting: Setting) -> Section:
    runs = played(setting, described("vtc-figure-9"))
    early, late = (mean_response(runs["vtc"], "client-1", *when) for when in ((0, 200), (400, 600)))
    fcfs = mean_response(runs["fcfs"], "client-1", 400, 600)
    return Section(
        "Figure 9: isolation from a client that does not behave",
        "VTC, section 5.2, Figure 9",
        text=("Client 1: 30 requests a minute; client 2: from none to 120 a minute, linearly; 256/256, 600 s.",),
        checks=[
            prompt("vtc: client 1's mean time to first token while client 2 is over its share", late, 2.0),
            Check(
                "vtc: that is within 1.5 s of what it was before",
                late - early < 1.5,
                f"{early:.2f} s, then {late:.2f} s",
            ),
            Check("fcfs lets client 1 wait at least three times as long", fcfs > 3 * late, f"{fcfs:.2f} s"),
        ],
        plots=[
            rates_plot("vtc-figure-9a", "Figure 9a: service received, vtc", runs["vtc"][0], 600),
            response_plot("vtc-figure-9b", "Figure 9b: time to first token", _first(runs), 600),
        ],
    )


@experiment("vtc-figure-10")
def figure_10(setting: Setting) -> Section:
    runs = played(setting, described("vtc-figure-10"), ("vtc", "lcf"))
    second = {p: [mean_service(runs[p], name, 330, 600) for name in ("client-1", "client-2")] for p in runs}
    favoured = second["lcf"][0] / second["lcf"][1]
    return Section(
        "Figure 10: the workload shifts",
        "VTC, section 5.2, Figure 10",
        text=(
            "Five minutes of client 1 coming and going at 30 requests a minute beside client 2's 90; five of 60 and "
            "60; five of 30 and 90; 256/256. LCF is VTC without the counter lift.",
        ),
        checks=[
            equal("vtc: both receive the same in the second phase", second["vtc"], 0.10),
            Check(
                "lcf serves client 1 more there, for its deficit of the first", favoured > 1.10, f"{favoured:.2f} : 1"
            ),
        ],
        plots=[
            rates_plot(f"vtc-figure-10{letter}", f"Figure 10{letter}: service received, {policy}", runs[policy][0], 900)
            for letter, policy in (("a", "vtc"), ("b", "lcf"))
        ],
    )


def _first(runs: Runs) -> dict[str, Run]:
    return {policy: of_policy[0] for policy, of_policy in runs.items()}
