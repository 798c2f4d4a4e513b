"""Figures 4, 5, 9 and 10 of the VTC paper: clients under their share are served as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.evidence.document.sections import Check, Section, Setting, Table, experiment
from headgate.evidence.over_seeds import within
from headgate.evidence.over_time import rates_plot, response_between, response_plot
from headgate.evidence.vtc.play import (
    described,
    equal,
    first_seed,
    mean_response,
    mean_service,
    measured_of,
    played,
    prompt,
)
from headgate.evidence.vtc.traces import skipped, workload_of
from headgate.simulator.run import Run


@experiment("vtc-figure-4")
def figure_4(setting: Setting) -> Section:
    title, source = "Figure 4: two clients under their share, one over it", "VTC, section 5.2, Figure 4"
    if setting.traces is None:
        return skipped(title, source)
    runs = played(setting, workload_of(setting.traces, "proportional", "vtc"))
    names = sorted(runs["vtc"][0].tenants, key=lambda name: runs["vtc"][0].tenants[name].requests)
    slow, middle, greedy = names
    measured = measured_of(setting, "proportional")
    to_s = runs["vtc"][0].total_time_s
    ratio = mean_service(runs["vtc"], middle, 60, 540) / mean_service(runs["vtc"], slow, 60, 540)
    share = mean_service(runs["vtc"], greedy, 60, 540) / sum(mean_service(runs["vtc"], name, 60, 540) for name in names)
    isolated = [mean_response(runs["vtc"], name, 0, 600) for name in (slow, middle)]
    return Section(
        title,
        source,
        text=("15, 30 and 90 requests a minute, 256/256, for 600 s.",),
        tables=[_waits(names, runs, measured)],
        checks=[
            *(
                within(
                    f"vtc: mean time to first token of {name}",
                    ours,
                    response_between(measured["vtc"], name, 0, 600),
                    0.2,
                )
                for name, ours in zip((slow, middle), isolated, strict=True)
            ),
            prompt("vtc: the slow client's mean time to first token", isolated[0]),
            prompt("vtc: the middle client's mean time to first token", isolated[1]),
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
            response_plot("vtc-figure-4b", "Figure 4b: time to first token", first_seed(runs), 600),
        ],
    )


def _waits(names: Sequence[str], runs: Mapping[str, Sequence[Run]], measured: Mapping[str, Run]) -> Table:
    rows = []
    for policy in runs:
        for name in names:
            theirs, ours = response_between(measured[policy], name, 0, 600), mean_response(runs[policy], name, 0, 600)
            rows.append((policy, name, theirs, ours, f"{ours / theirs:.2f}"))
    return Table("Mean time to first token (s)", ("scheduler", "client", "measured", "ours", "ratio"), rows)


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
            prompt("vtc: client 1's mean time to first token", response),
            Check(
                "fcfs lets it wait at least five times as long",
                mean_response(runs["fcfs"], "client-1", 0, 600) > 5 * response,
                f"{mean_response(runs['fcfs'], 'client-1', 0, 600):.1f} s",
            ),
            equal("work conserving: total service, minute by minute,", totals, 0.15),
        ],
        plots=[
            rates_plot("vtc-figure-5a", "Figure 5a: service received, vtc", vtc[0], 600),
            response_plot("vtc-figure-5b", "Figure 5b: time to first token", first_seed(runs), 600),
        ],
    )


@experiment("vtc-figure-9")
def figure_9(setting: Setting) -> Section:
    runs = played(setting, described("vtc-figure-9"))
    ninth, tenth = (mean_response(runs["vtc"], "client-1", start, start + 60) for start in (480, 540))
    fcfs = [mean_response(runs["fcfs"], "client-1", start, start + 60) for start in (480, 540)]
    overall = mean_response(runs["vtc"], "client-1", 0, 600)
    return Section(
        "Figure 9: isolation from a client that does not behave",
        "VTC, section 5.2, Figure 9",
        text=("Client 1: 30 requests a minute; client 2: from none to 120 a minute, linearly; 256/256, 600 s.",),
        checks=[
            prompt("vtc: client 1's mean time to first token", overall),
            Check(
                "vtc: it does not grow with client 2's rate: minute 10 within 20 % of minute 9",
                abs(tenth / ninth - 1) < 0.20,
                f"{ninth:.2f} s, then {tenth:.2f} s",
            ),
            Check(
                "fcfs lets it grow: minute 10 at least 1.5 times minute 9",
                fcfs[1] > 1.5 * fcfs[0],
                f"{fcfs[0]:.2f} s, then {fcfs[1]:.2f} s",
            ),
        ],
        plots=[
            rates_plot("vtc-figure-9a", "Figure 9a: service received, vtc", runs["vtc"][0], 600),
            response_plot("vtc-figure-9b", "Figure 9b: time to first token", first_seed(runs), 600),
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
