"""Every table, figure, theorem and algorithm of the five sources: where it is reproduced, or why it is not.

An item that is not reproduced names the datum that is missing, or says that there is nothing to measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.evidence.document import Cell, Markdown, Section, Table, render_table


class Item(NamedTuple):
    """`where`: experiments of this page, or a path from the project's root, or nothing."""

    name: str
    where: tuple[str, ...]
    note: str = ""


_DRAWING = "a drawing: nothing to measure"
_TRACE = "missing: the trace of FairServe, which is not public"
_CODE = "in dispatcher and gpu_worker; its properties are tested there"

ITEMS: dict[str, tuple[Item, ...]] = {
    "VTC (OSDI 2024)": (
        Item("Figures 1 and 2", (), _DRAWING),
        Item("Table 1", (), "notation"),
        Item("Algorithm 1", ("headgate/simulator/engines/separate_prefill.py",), "continuous batching"),
        Item("Algorithms 2, 3 and 4", ("gpu_worker/policies/fairness/vtc.py",), _CODE),
        Item("Lemma 4.3, Theorems 4.4, 4.9, 4.11, 4.13", ("vtc-theorems",)),
        Item("Theorem 4.8", ("vtc-adversary",)),
        Item("Remarks 4.5 to 4.7, 4.12", (), "4.5 is Figure 3; the others state no figure"),
        Item("Figure 3", ("vtc-figure-3", "vtc-overload", "vtc-measured")),
        Item("Figure 4", ("vtc-figure-4", "vtc-measured")),
        Item("Figure 5", ("vtc-figure-5", "vtc-measured")),
        Item("Figure 6", ("vtc-figure-6",), "missing: the log is kept apart, so nothing is compared with it"),
        Item("Figure 7", ("vtc-figure-7", "vtc-measured")),
        Item(
            "Figure 8", ("vtc-figure-8", "vtc-measured"), "the logs have other lengths than the caption; both are here"
        ),
        Item("Figure 9", ("vtc-figure-9", "vtc-measured")),
        Item("Figure 10", ("vtc-figure-10",), "missing: the log is kept apart, so nothing is compared with it"),
        Item("Figures 11 and 20", (), "rates and lengths of the arena trace, which is played as it is"),
        Item("Figure 12", ("vtc-response",)),
        Item("Figure 13", ("vtc-clients",), "all 27 clients under RPM 5, 10, 15, 20 and 30"),
        Item("Figure 14", ("vtc-clients",), "all rates with a log"),
        Item("Table 2", ("vtc-real",)),
        Item("Figure 15", ("vtc-figure-15", "vtc-measured")),
        Item("Figure 16", ("vtc-figure-16",), "missing: the log is kept apart, so nothing is compared with it"),
        Item("Figure 17", (), "missing: the numbers behind the surfaces; step times are fitted to whole runs instead"),
        Item("Figure 18", ("vtc-measured",), "waits of the 27 clients under the profiled cost"),
        Item("Tables 3 and 4", ("vtc-profiled", "vtc-measured")),
        Item("Figure 19, Tables 5 and 6", ("vtc-overload", "vtc-overload-multi", "vtc-measured")),
    ),
    "QLM (SoCC 2024)": (
        Item("Figure 1", ("qlm-figure-1",)),
        Item("Figures 2, 6 and 7", (), _DRAWING),
        Item("Figures 3 and 18", ("qlm-figure-3-18",)),
        Item("Figure 4", ("qlm-figure-4",)),
        Item("Figure 5", ("qlm-figure-5",)),
        Item("Algorithm 1, Definitions 4.1 and 4.2", ("dispatcher/policies/planning",), _CODE),
        Item("Tables 1, 2 and 4", (), "notation"),
        Item("The exact optimum (section 7)", (), "not yet on this page; tests compare small plans with all orders"),
        Item("Figure 8", (), "lengths of ShareGPT: drawn from its shape, missing: the sampled requests"),
        Item("Figures 9 and 10", ("qlm-figure-9-10",)),
        Item("Figures 11 and 14", ("qlm-figure-11-14",)),
        Item("Figures 12 and 13", ("qlm-figure-12-13",)),
        Item("Figure 15", ("qlm-figure-15",)),
        Item("Figure 16", ("qlm-figure-16",)),
        Item("Figure 17", ("qlm-figure-17",)),
        Item("Figure 19", ("qlm-figure-19",)),
        Item("Figure 20", ("qlm-figure-20",)),
        Item("Table 3", (), "a comparison of features"),
    ),
    "FairServe (2024)": (
        Item("Table 1", (), "a comparison of features"),
        Item("Figures 1 and 7", (), _DRAWING),
        Item("Figures 2 to 5", (), _TRACE),
        Item("Table 2", ("fairserve",), "its distribution makes the workload"),
        Item("Figures 6, 8a and 8b", ("fairserve",), "cut interactions and wasted tokens, on the made workload"),
        Item("Algorithm 1, equations 2 and 3", ("gpu_worker/policies/fairness/wsc.py",), _CODE),
        Item("Figures 8c, 8d and 9, Table 3", ("fairserve-service",), "on the made workload: orderings only"),
        Item("Table 4", ("fairserve",)),
    ),
    "BWFQ (2025)": (
        Item("Figure 1", (), _DRAWING),
        Item("Equations 1 to 3", ("bwfq-cares",)),
        Item("Tables 1 and 2", ("bwfq-latency",)),
        Item("Figures 2 to 4 (latency distributions, load)", ("bwfq-latency",), "its quantiles, not the drawn shapes"),
        Item("Figure 5", ("bwfq-scale",)),
        Item("Figure 6", ("bwfq-timeline",)),
        Item("Section 4.4 (significance)", (), "missing: the source's samples; ours are over seeds"),
    ),
    "Priority and preemption (an article)": (
        Item("Costs of swap and recompute (section 1.2)", ("docs/preemption-design.md",), "recalculated there"),
        Item("Mixed load (section 6.2)", (), "missing: machine, model and load; benchmarks/tiers_mixed.py has ours"),
        Item("Aging, shares, shedding (sections 3 and 4)", ("gpu_worker/policies",), "stated without figures"),
        Item("Limits and reservation (section 7)", ("docs/preemption-design.md",), "advice without figures"),
    ),
}


def render_coverage(sections: Mapping[str, Section]) -> str:
    """Return the last part of the page. Experiments that are not on it are shown without a link."""
    parts = ['<a id="coverage"></a>\n', "## Every table, figure and theorem of the sources\n"]
    for source, items in ITEMS.items():
        rows: list[tuple[Cell, ...]] = [(item.name, _where(item, sections), item.note) for item in items]
        parts += [f"**{source}**\n", render_table(Table("", ("item", "where", "note"), rows))]
    return "\n".join(parts)


def _where(item: Item, sections: Mapping[str, Section]) -> Markdown | None:
    if not item.where:
        return None
    return Markdown(", ".join(f"[{name}](#{name})" if name in sections else f"`{name}`" for name in item.where))
