"""Figures 3, 6, 7 and 8 of the VTC paper: clients that request more than their share receive the same."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.evidence.document.sections import Section, Setting, experiment
from headgate.evidence.over_time import apart_plot, rates_plot, response_plot, service_between
from headgate.evidence.vtc import play
from headgate.evidence.vtc.traces import workload_of
from headgate.simulator.run import Run


@experiment(
    "vtc-figure-3",
    "Figure 3: two clients, both over their share",
    "VTC, section 5.2, Figure 3",
    needs_traces=True,
)
def figure_3(setting: Setting) -> Section:
    runs = play.played(setting, workload_of(setting.traces_folder, "overload", "vtc"))
    both = [service_between(runs["vtc"], tenant, 60, 360) for tenant in runs["vtc"][0].tenants]
    return Section(
        text=("90 and 180 requests per minute, 256/256, for 360 s.",),
        tables=[play.apart_table(runs, play.measured_timelines(setting, "overload"), 360)],
        checks=[play.equal("vtc: both receive the same", both), *play.bounded_under_vtc(runs, 360)],
        plots=[apart_plot("3a", play.first_seed(runs), 360), rates_plot("3b", "vtc", runs["vtc"][0], 360)],
    )


@experiment("vtc-figure-6", "Figure 6: a client that comes and goes, over its share", "VTC, section 5.2, Figure 6")
def figure_6(setting: Setting) -> Section:
    runs = play.played(setting, play.described("vtc-figure-6"))
    both = [service_between(runs["vtc"], name, 60, 600) for name in ("client-1", "client-2")]
    return Section(
        text=("Client 1: 120 requests per minute in every second minute. Client 2: 180 all the time. 256/256, 600 s.",),
        checks=[play.equal("vtc: both receive the same", both), *play.bounded_under_vtc(runs, 600)],
        plots=[rates_plot("6a", "vtc", runs["vtc"][0], 600), response_plot("6b", play.first_seed(runs), 600)],
    )


@experiment(
    "vtc-figure-7",
    "Figure 7: short requests against long ones, Poisson",
    "VTC, section 5.2, Figure 7",
    needs_traces=True,
)
def figure_7(setting: Setting) -> Section:
    text = "480 requests per minute of 64/64 against 90 of 256/256, Poisson."
    runs = play.played(setting, workload_of(setting.traces_folder, "poisson_short_long", "vtc"))
    return _uneven("7", text, runs, play.measured_timelines(setting, "poisson_short_long"))


@experiment("vtc-figure-8", "Figure 8: long answers against long prompts, Poisson", "VTC, section 5.2, Figure 8")
def figure_8(setting: Setting) -> Section:
    text = (
        "480 requests per minute of 64/512 against 90 of 512/64, Poisson, 600 s, as in the caption of the figure. The "
        "authors' published logs have other lengths: 480 per minute of 512/32 against 90 of 32/512. This page does not "
        "compare with them yet."
    )
    return _uneven("8", text, play.played(setting, play.described("vtc-figure-8")), {})


def _uneven(figure: str, text: str, runs: dict[str, list[Run]], measured: Mapping[str, Run]) -> Section:
    both = [service_between(runs["vtc"], tenant, 60, 540) for tenant in runs["vtc"][0].tenants]
    return Section(
        text=(text,),
        tables=[play.apart_table(runs, measured, 600)],
        checks=[play.equal("vtc: both receive the same", both), *play.bounded_under_vtc(runs, 600)],
        plots=[
            rates_plot(f"{figure}a", "vtc", runs["vtc"][0], 600),
            apart_plot(f"{figure}b", play.first_seed(runs), 600),
        ],
    )
