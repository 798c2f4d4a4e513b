"""Figures 3, 6, 7 and 8 of the VTC paper: clients over their share receive the same."""

from __future__ import annotations

from headgate.evidence.document.sections import Section, Setting, experiment
from headgate.evidence.over_time import apart_plot, rates_plot, response_plot
from headgate.evidence.vtc.play import (
    apart_table,
    bounded_under_vtc,
    described,
    equal,
    first_seed,
    mean_service,
    measured_of,
    played,
)
from headgate.evidence.vtc.traces import skipped, workload_of
from headgate.simulator.run import Run


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
        tables=[apart_table(runs, measured_of(setting, "overload"), 360)],
        checks=[equal("vtc: both receive the same", both), *bounded_under_vtc(runs, 360)],
        plots=[
            apart_plot("vtc-figure-3a", "Figure 3a: difference of accumulated service", first_seed(runs), 360),
            rates_plot("vtc-figure-3b", "Figure 3b: service received, vtc", runs["vtc"][0], 360),
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
            response_plot("vtc-figure-6b", "Figure 6b: time to first token", first_seed(runs), 600),
        ],
    )


@experiment("vtc-figure-7")
def figure_7(setting: Setting) -> Section:
    title, source = "Figure 7: short requests against long ones, Poisson", "VTC, section 5.2, Figure 7"
    if setting.traces is None:
        return skipped(title, source)
    text = "480 requests a minute of 64/64 against 90 of 256/256, Poisson."
    return _uneven(
        title,
        source,
        text,
        "7",
        played(setting, workload_of(setting.traces, "poisson_short_long", "vtc")),
        measured_of(setting, "poisson_short_long"),
    )


@experiment("vtc-figure-8")
def figure_8(setting: Setting) -> Section:
    text = (
        "480 requests a minute of 64/512 against 90 of 512/64, Poisson, 600 s, as the caption of the figure has it. "
        "The authors' published logs hold other lengths: 480 a minute of 512/32 against 90 of 32/512. They are not "
        "compared here yet."
    )
    title = "Figure 8: long answers against long prompts, Poisson"
    return _uneven(title, "VTC, section 5.2, Figure 8", text, "8", played(setting, described("vtc-figure-8")), {})


def _uneven(
    title: str, source: str, text: str, number: str, runs: dict[str, list[Run]], measured: dict[str, Run]
) -> Section:
    both = [mean_service(runs["vtc"], tenant, 60, 540) for tenant in runs["vtc"][0].tenants]
    return Section(
        title,
        source,
        text=(text,),
        tables=[apart_table(runs, measured, 600)],
        checks=[equal("vtc: both receive the same", both), *bounded_under_vtc(runs, 600)],
        plots=[
            rates_plot(f"vtc-figure-{number}a", f"Figure {number}a: service received, vtc", runs["vtc"][0], 600),
            apart_plot(
                f"vtc-figure-{number}b", f"Figure {number}b: difference of accumulated service", first_seed(runs), 600
            ),
        ],
    )
