"""Tables 3 and 4 of the VTC paper: the profiled, quadratic cost function as the measure and as what is charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dispatcher.policies.service import service_function
from headgate.evidence.document.sections import Check, Section, Setting, Table, experiment
from headgate.evidence.over_seeds import avg_difference, max_difference, mean, over_seeds, throughput, within
from headgate.evidence.vtc.paper import TABLE_3, TABLE_4, Printed
from headgate.evidence.vtc.tables import THROUGHPUT_TOLERANCE, above, specs_of
from headgate.evidence.vtc.traces import measured_run, skipped
from headgate.simulator.run import Run

SCALE = 10.0
"""The paper's figures come out in tenths of the h that it prints (Table 4's fcfs: 3,157 of h from its own log, 317 in
the table); of that unit the paper says nothing."""


@experiment("vtc-profiled")
def vtc_profiled(setting: Setting) -> Section:
    title, source = "The profiled cost function", "VTC, Appendix B.2, Tables 3 and 4"
    if setting.traces is None:
        return skipped(title, source)
    real = _runs(setting, "real", tuple(TABLE_3))
    overload = _runs(setting, "overload", tuple(TABLE_4))
    log = measured_run(setting.traces, "overload", "fcfs", service_function("profiled"))
    assert log is not None
    avg = {policy: mean(runs, avg_difference) / SCALE for policy, runs in real.items()}
    two = {policy: mean(runs, avg_difference) / SCALE for policy, runs in overload.items()}
    return Section(
        title,
        source,
        text=(
            "h(p, q) = 2.1 p + q + 0.04 p q + 0.032 q² + 11.46, charged by difference a token. The authors' own log of "
            f"the overloaded workload under fcfs gives an average difference of {avg_difference(log):,.1f} in units of "
            f"this h, Table 4 prints {TABLE_4['fcfs'].avg}: so its unit is h / 10, and ours are shown in it.",
            "The average difference that Table 3 prints for VTC (369) is far above ours, and also above what the "
            "authors' log of plain VTC gives under this measure (252). The released server charges every running "
            "request again whenever a request finishes. That is not part of Algorithm 2, so headgate does not copy it. "
            "For this reason differences are reported without a verdict, and throughput and rankings are compared. "
            "Logs of runs under this cost are published; here the comparison is with the printed tables only.",
        ),
        tables=[_table("Table 3: the arena trace", TABLE_3, real), _table("Table 4: two clients", TABLE_4, overload)],
        checks=[
            *(
                within(
                    f"{policy}: throughput", mean(runs, throughput), TABLE_3[policy].throughput, THROUGHPUT_TOLERANCE
                )
                for policy, runs in real.items()
            ),
            within("two clients, fcfs: average difference", two["fcfs"], TABLE_4["fcfs"].avg, 0.20),
            *(
                above("arena, avg", ("fcfs", avg["fcfs"]), (low, avg[low]))
                for low in ("vtc", "vtc-predict", "vtc-oracle")
            ),
            *(above("two clients, avg", ("fcfs", two["fcfs"]), (low, two[low])) for low in ("vtc", "vtc-oracle")),
            _reported(real, TABLE_3),
        ],
    )


def _runs(setting: Setting, workload: str, policies: tuple[str, ...]) -> dict[str, list[Run]]:
    specs = specs_of(setting, workload, policies)
    return over_seeds(setting, {policy: replace(spec, service="profiled") for policy, spec in specs.items()})


def _table(title: str, printed: Mapping[str, Printed], runs: Mapping[str, list[Run]]) -> Table:
    columns = ("scheduler", "max: paper", "ours", "avg: paper", "ours", "ratio", "tokens/s: paper", "ours", "ratio")
    rows = []
    for policy, row in printed.items():
        highest, avg = (mean(runs[policy], figure) / SCALE for figure in (max_difference, avg_difference))
        speed = mean(runs[policy], throughput)
        ratio, speed_ratio = f"{avg / row.avg:.3f}", f"{speed / row.throughput:.3f}"
        rows.append((policy, row.max, highest, row.avg, avg, ratio, row.throughput, speed, speed_ratio))
    return Table(title, columns, rows)


def _reported(runs: Mapping[str, list[Run]], printed: Mapping[str, Printed]) -> Check:
    ratios = ", ".join(
        f"{policy} {mean(of_policy, avg_difference) / SCALE / printed[policy].avg:.2f}"
        for policy, of_policy in runs.items()
    )
    return Check("Table 3: our averages over the printed ones", None, ratios)
