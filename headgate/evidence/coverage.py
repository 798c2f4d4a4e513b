"""Every table, figure, theorem and algorithm of the five sources: where it is reproduced, or why it is not.

An item that is not reproduced names the datum that is missing, or says that there is nothing to measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.evidence.document import Cell, Markdown, Section, Table, render_table


class Covered(NamedTuple):
    """`where`: experiments of this page, or a path from the project's root, or nothing."""

    name: str
    where: tuple[str, ...]
    note: str = ""


_DRAWING = "a drawing: nothing to measure"
_TRACE = "missing: the trace of FairServe, which is not public"
_CODE = "in dispatcher and gpu_worker; its properties are tested there"

ITEMS: dict[str, tuple[Covered, ...]] = {
    "VTC (OSDI 2024)": (
        Covered("Figures 1 and 2", (), _DRAWING),
        Covered("Table 1, Definitions 4.1, 4.2 and 4.10", (), "notation and terms"),
        Covered("Algorithm 1", ("headgate/simulator/engines/separate_prefill.py",), "continuous batching"),
        Covered("Algorithms 2, 3 and 4", ("gpu_worker/policies/fairness/vtc.py",), _CODE),
        Covered("Lemma 4.3, Theorems 4.4, 4.9, 4.11, 4.13", ("vtc-theorems",)),
        Covered("Theorem 4.8", ("vtc-adversary",)),
        Covered("Remarks 4.5 to 4.7, 4.12", (), "4.5 is Figure 3; the others state no figure"),
        Covered("Equations 1 to 11", ("vtc-theorems", "vtc-profiled"), "the cost functions, and steps of the proofs"),
        Covered("Lemmas A.1 and A.2", ("vtc-theorems",), "steps of the proof of Lemma 4.3"),
        Covered("Figure 3", ("vtc-figure-3", "vtc-overload", "vtc-measured")),
        Covered("Figure 4", ("vtc-figure-4", "vtc-measured")),
        Covered("Figure 5", ("vtc-figure-5", "vtc-measured")),
        Covered("Figure 6", ("vtc-figure-6",), "missing: the log is kept apart, so nothing is compared with it"),
        Covered("Figure 7", ("vtc-figure-7", "vtc-measured")),
        Covered(
            "Figure 8", ("vtc-figure-8", "vtc-measured"), "the logs have other lengths than the caption; both are here"
        ),
        Covered("Figure 9", ("vtc-figure-9", "vtc-measured")),
        Covered("Figure 10", ("vtc-figure-10",), "missing: the log is kept apart, so nothing is compared with it"),
        Covered("Figures 11 and 20", (), "rates and lengths of the arena trace, which is played as it is"),
        Covered("Figure 12", ("vtc-response",)),
        Covered("Figure 13", ("vtc-clients",), "all 27 clients under RPM 5, 10, 15, 20 and 30"),
        Covered("Figure 14", ("vtc-clients",), "all rates with a log"),
        Covered("Table 2", ("vtc-real",)),
        Covered("Figure 15", ("vtc-figure-15", "vtc-measured")),
        Covered("Figure 16", ("vtc-figure-16",), "missing: the log is kept apart, so nothing is compared with it"),
        Covered(
            "Figure 17", (), "missing: the numbers behind the surfaces; step times are fitted to whole runs instead"
        ),
        Covered("Figure 18", ("vtc-measured",), "waits of the 27 clients under the profiled cost"),
        Covered("Tables 3 and 4", ("vtc-profiled", "vtc-measured")),
        Covered("Figure 19, Tables 5 and 6", ("vtc-overload", "vtc-overload-multi", "vtc-measured")),
    ),
    "QLM (SoCC 2024)": (
        Covered("Figure 1", ("qlm-figure-1",)),
        Covered("Figures 2, 6 and 7", (), _DRAWING),
        Covered("Figures 3 and 18", ("qlm-figure-3-18",)),
        Covered("Figure 4", ("qlm-figure-4",)),
        Covered("Insights 1 to 3", ("qlm-figure-3-18", "qlm-figure-4", "qlm-figure-5"), "as its Figures 3, 4 and 5"),
        Covered("Figure 5", ("qlm-figure-5",)),
        Covered("Algorithm 1, Definitions 4.1 and 4.2", ("dispatcher/policies/planning",), _CODE),
        Covered("Tables 1, 2 and 4", (), "notation"),
        Covered("Definitions 2.1 to 2.3", ("dispatcher/policies/planning/slo.py",), "terms; " + _CODE),
        Covered("Equations 1 to 5", ("qlm-figure-3-18",), "the wait (2 and 3); the others add a request's own time"),
        Covered("Equations 6 to 13: the exact optimum", ("qlm-optimum",), "of small problems, with the planner's cost"),
        Covered(
            "Equations 14 to 22", ("qlm-figure-3-18",), "equation 2, derived for a long queue; tested as Figure 18"
        ),
        Covered("Figure 8", (), "missing: the sampled requests; lengths are drawn from the shape of ShareGPT"),
        Covered("Figures 9 and 10", ("qlm-figure-9-10",), "one model, so no plan decides anything"),
        Covered("Figures 11 and 14", ("qlm-figure-11-14",)),
        Covered("Figures 12 and 13", ("qlm-figure-12-13",)),
        Covered("Figure 15", ("qlm-figure-15",)),
        Covered("Figure 16", ("qlm-figure-16",)),
        Covered("Figure 17", ("qlm-figure-17",), "one model: the gain is the gate's order by due times, not a plan's"),
        Covered("Figure 19", ("qlm-figure-19",)),
        Covered("Figure 20", ("qlm-figure-20",)),
        Covered("Table 3", (), "a comparison of features"),
    ),
    "FairServe (2024)": (
        Covered("Table 1", (), "a comparison of features"),
        Covered("Figures 1 and 7", (), _DRAWING),
        Covered("Figures 2 to 5", (), _TRACE),
        Covered("Table 2", ("fairserve",), "its distribution makes the workload"),
        Covered("Figures 6, 8a and 8b", ("fairserve",), "cut interactions and wasted tokens, on the made workload"),
        Covered("Equation 1", (), "attention: nothing to measure"),
        Covered("Algorithm 1, equations 2 and 3", ("gpu_worker/policies/fairness/wsc.py",), _CODE),
        Covered(
            "Figures 8c, 8d and 9, Table 3",
            ("fairserve-service",),
            "missing: the trace; orderings, on a made workload",
        ),
        Covered("Table 4", ("fairserve",)),
        Covered("Takeaways 1 to 3", (), _TRACE + "; they sum up Figures 2 to 5"),
        Covered("Takeaway 4", ("fairserve",), "RPM wastes tokens on interactions that it cuts"),
    ),
    "BWFQ (2025)": (
        Covered("Figure 1", (), _DRAWING),
        Covered("Equations 1 to 3, Algorithms 1 and 2", ("bwfq-cares",), "the order called ratio"),
        Covered("Tables 1 and 2", ("bwfq-latency",)),
        Covered("Figures 2 and 4 (arrivals, load)", ("bwfq-latency",), "its workload, and the loads of Table 2"),
        Covered("Figure 3 (distribution of latencies)", ("bwfq-timeline",), "waits by quantile; no bins are printed"),
        Covered("Figure 5", ("bwfq-scale",), "time and memory of a decision are in benchmarks/results"),
        Covered("Figure 6", ("bwfq-timeline",)),
        Covered("Section 4.4 (significance)", (), "missing: the source's samples; ours are over seeds"),
    ),
    "Priority and preemption (an article)": (
        Covered("Costs of swap and recompute, crossover (section 1.2)", ("preemption-costs",)),
        Covered("Tiers and victims (section 2)", ("gpu_worker/policies",), _CODE),
        Covered("Objectives and shedding (section 3)", ("preemption-mixed",), "the chart of compliance has no numbers"),
        Covered("Starvation, aging, shares (section 4)", ("preemption-aging",)),
        Covered("Execution (section 5)", ("gpu_worker/engines",), "stated without figures"),
        Covered("Integration (section 6.1)", ("gpu_worker/engines/vllm",), _CODE),
        Covered("Mixed load (section 6.2)", ("preemption-mixed",), "missing: machine and load; orders only"),
        Covered("Limits on preemptions (section 7.1)", ("preemption-limits",), "advice without figures"),
        Covered("Reservation (section 7.2)", ("preemption-reserve",)),
        Covered("Monitoring (section 7.3)", ("gpu_worker/alerts.yaml",), "thresholds only"),
    ),
}


def render_coverage(sections: Mapping[str, Section]) -> str:
    """Return the last part of the page. Experiments that are not on it are shown without a link."""
    parts = ['<a id="coverage"></a>\n', "## Every table, figure and theorem of the sources\n"]
    for source, items in ITEMS.items():
        rows: list[tuple[Cell, ...]] = [(item.name, _where(item, sections), item.note) for item in items]
        parts += [f"**{source}**\n", render_table(Table("", ("item", "where", "note"), rows))]
    return "\n".join(parts)


def _where(item: Covered, sections: Mapping[str, Section]) -> Markdown | None:
    if not item.where:
        return None
    return Markdown(", ".join(f"[{name}](#{name})" if name in sections else f"`{name}`" for name in item.where))
