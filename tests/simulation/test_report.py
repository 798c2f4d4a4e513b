"""The report page: self-contained, well-formed, the same bytes every time, and names of tenants stay text."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.report.drawing import Plot, Series
from headgate.simulator.report.page import page, verdict, write
from headgate.simulator.report.plots import _shares_of, grouped_bars, inline, number
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

VOID = {"meta", "link", "br", "img"}
HEADINGS = (
    *("Key figures", "Service rate", "Demand", "Waits by tenant", "Behind while waiting", "Response time", "Shares"),
    *("Queue", "KV cache", "Tenants"),
)


def runs(tenants: int = 3, policies: tuple[str, ...] = ("fcfs", "vtc"), **changes: object) -> list[list[Run]]:
    arrivals = [Arrival(n * 0.5, f"t{n % tenants}", 60, 30) for n in range(max(60, tenants))]
    spec = RunSpec(ListWorkload("some", arrivals), "vtc", load_profile(), timeline=True, **changes)  # type: ignore[arg-type]
    return [[simulate(replace(spec, policy=policy))] for policy in policies]


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        links = [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.outside += [link for link in links if not link.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_all_is_there_and_nothing_is_fetched() -> None:
    text = page(runs())
    assert parsed(text).outside == []
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    for heading in HEADINGS:
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<figcaption>t0</figcaption>") == 4
    assert "Engine: a10g-llama2-7b, fitted" in text
    assert "<strong>t0, the tenant with the least service, waits" in text
    assert "\nvtc,0,t2,20,20,0,2400.0," in text


def test_plots_are_xml_with_titles() -> None:
    drawings = re.findall(r"<svg .*?</svg>", page(runs()), re.DOTALL)
    assert len(drawings) > 10
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)  # noqa: S314 - our own
        assert root.get("role") == "img"
        assert root[0].tag.endswith("title")
        assert root[0].text
        assert root[1].tag.endswith("desc")
        assert root[1].text


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write(tmp_path / name, runs())
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_names_are_text() -> None:
    name = "<script>alert('&')</script>"
    arrivals = [Arrival(float(n), name, 50, 50) for n in range(5)]
    spec = RunSpec(ListWorkload(name, arrivals), "vtc", load_profile(), timeline=True)
    text = page([[simulate(spec)]])
    parsed(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("name", ["$\\frac{1$", "$x^2$", "名前", "_hidden", "100%"])
def test_names_are_no_formulas_and_need_no_font(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """matplotlib takes text between dollars for a formula, and warns of letters that its own fonts lack."""
    drawn = inline("waits", Plot("chart", "waits", "", "s", [Series("vtc", [0], [1.0])], kind="bars", ticks=(name,)))
    assert name in drawn
    assert not recwarn.list


@pytest.mark.parametrize("tenants", [1, 8, 9, 300])
def test_many_tenants_are_gathered(tenants: int) -> None:
    text = page(runs(tenants))
    parsed(text)
    assert (f"{tenants - 7} others" in text) == (tenants > 8)


def test_a_tenant_that_was_never_served_is_in_the_table() -> None:
    arrivals = [Arrival(0.0, "fits", 50, 50), Arrival(0.0, "never", 20_000, 50)]
    spec = RunSpec(ListWorkload("some", arrivals), "vtc", load_profile(), timeline=True)
    text = page([[simulate(spec)]])
    parsed(text)
    assert "<td>never</td><td>vtc</td>" in text


def test_a_workload_of_nothing_has_a_page() -> None:
    spec = RunSpec(ListWorkload("nothing", []), "vtc", load_profile(), timeline=True)
    text = page([[simulate(spec)]])
    parsed(text)
    assert "<strong>No request was served.</strong>" in text


def test_the_verdict_of_requests_that_all_are_refused_says_why() -> None:
    spec = RunSpec(ListWorkload("long", [Arrival(0.0, "a", 20_000, 5)]), "vtc", load_profile(), timeline=True)
    assert "<strong>No request was served (too_large).</strong>" in page([[simulate(spec)]])


def test_bounds_are_shown_for_the_policies_that_have_them() -> None:
    assert "✔ holds" in page(runs(policies=("vtc",)))
    assert "<h2>Bounds</h2>" not in page(runs(policies=("fcfs",)))


def test_seeds_are_a_mean_and_a_spread() -> None:
    spec = RunSpec(ListWorkload("some", [Arrival(n * 0.1, "a", 60, 90) for n in range(300)]), "vtc", load_profile())
    of_seeds = [simulate(replace(spec, seed=seed, jitter=0.05, timeline=seed == 0)) for seed in range(3)]
    text = page([of_seeds])
    assert "3 seeds" in text
    assert "±" in text


@pytest.mark.parametrize("policies", [("vtc",), ("fcfs", "vtc"), ("fcfs", "lcf", "vtc")])
def test_the_pool_is_drawn_as_a_limit(policies: tuple[str, ...]) -> None:
    assert re.findall(r'<li style="([^"]*)">pool</li>', page(runs(policies=policies))) == ["--pen: dotted var(--c6)"]


def test_colours_are_the_page_style_only() -> None:
    series = [Series(f"t{n}", [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) for n in range(8)]
    drawn = inline("colours", Plot("", "", "x", "y", series))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn)
    assert {f"var(--c{n})" for n in range(7)} <= set(re.findall(r"var\(--c\d\)", drawn))


def test_without_matplotlib_the_report_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headgate\[plots\]'"):
        page(runs())


def test_shares_end_with_the_last_arrival() -> None:
    arrivals = [Arrival(n * 0.02, "greedy" if n % 4 else "modest", 60, 90) for n in range(3600)]
    spec = RunSpec(ListWorkload("some", arrivals), "vtc", load_profile(), timeline=True)
    shares = {}
    for policy in ("fcfs", "vtc"):
        shares[policy] = _shares_of(simulate(replace(spec, policy=policy)))["modest"]
    assert shares["fcfs"] == pytest.approx(25, abs=2)
    # Both ask for more than half. VTC keeps them within 2U of each other: 40,000 of the 215,000 units delivered.
    assert shares["vtc"] == pytest.approx(50, abs=3)


def test_a_load_above_the_engines_capacity_is_said() -> None:
    light, heavy = (
        ListWorkload("some", [Arrival(n * gap_s, "a", 60, 90) for n in range(300)]) for gap_s in (1.0, 0.05)
    )
    spec = RunSpec(light, "vtc", load_profile(), timeline=True)
    assert "above the engine" not in page([[simulate(spec)]])
    assert "The load is above the engine" in page([[simulate(replace(spec, workload=heavy))]])


def test_it_is_said_too_if_a_policy_that_refuses_comes_first() -> None:
    heavy = ListWorkload("some", [Arrival(n * 0.05, f"t{n % 3 // 2}", 60, 90) for n in range(900)])
    spec = RunSpec(heavy, "vtc", load_profile(), timeline=True)
    text = page([[simulate(replace(spec, policy=policy))] for policy in ("rpm:5", "vtc")])
    assert re.search(r"busy after the last arrival for \d+ s under vtc\.", text)


def test_a_policy_that_refuses_the_lightest_tenant_is_not_the_best_for_it() -> None:
    arrivals = [Arrival(n * 0.01, f"t{n % 3}", 20, 5) for n in range(60)]
    spec = RunSpec(ListWorkload("some", arrivals), "vtc", load_profile())
    found = [simulate(replace(spec, policy=policy)) for policy in ("rpm:1", "fcfs")]
    text = verdict(found)
    assert re.match(
        r"t0, the tenant .*, waits [\d.]+ s for a first token \(P99\) under fcfs, and [\d.]+ s under rpm", text
    )
    assert text.endswith("under rpm:1, which refuses 19 of its 20 requests. rpm:1 refuses 57 requests in all.")
    rpm, fcfs = (run.tenants["t0"].ttft_s for run in found)
    assert rpm is not None
    assert fcfs is not None
    assert rpm.p99 < fcfs.p99


def read_csv(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the data below a section's charts."""
    section = text[text.index(f"<h2>{heading}</h2>") :]
    return list(csv.reader(StringIO(unescape(section.split("<pre>")[1].split("</pre>")[0]))))


@pytest.mark.parametrize("policies", [("vtc",), ("fcfs", "vtc")])
def test_every_chart_has_its_data(policies: tuple[str, ...]) -> None:
    drawn = runs(tenants=9, policies=policies)
    text = page(drawn)
    headings, *rows = read_csv(text, "Service rate")
    assert headings == ["tenant", "policy", "time (s)", "service rate (units/s)"]
    timeline = drawn[-1][0].timeline
    assert timeline is not None
    of_one = [(float(at), float(rate)) for name, policy, at, rate in rows if (name, policy) == ("t0", "vtc")]
    assert of_one == [
        (float(f"{at:.6g}"), float(f"{rate:.6g}"))
        for at, rate in zip(timeline.times_s, timeline.service_rate["t0"], strict=True)
    ]
    assert {name for name, *_ in rows} == {*(f"t{n}" for n in range(7)), "2 others"}
    headings, *rows = read_csv(text, "Waits by tenant")
    assert headings == ["tenant", "policy", "time to first token, P50 (s)", "time to first token, P99 (s)"]
    assert [row[:2] for row in rows] == [[f"t{n}", policy] for n in range(7) for policy in policies]
    assert read_csv(text, "KV cache")[-1][0] == "pool"
    assert text.count("<h2>") - text.count("<summary>The data of these charts as CSV") == 2 + ("vtc" in policies)


def test_targets_have_a_chart_of_what_is_in_time() -> None:
    assert "First tokens in time" not in page(runs())
    arrivals = [Arrival(n * 0.05, f"t{n % 2}", 60, 30, slo_ttft_ms=500.0 if n % 2 else None) for n in range(200)]
    drawn = simulate(RunSpec(ListWorkload("some", arrivals), "fcfs", load_profile(), timeline=True))
    headings, *rows = read_csv(page([[drawn]]), "Waits by tenant")
    assert headings[-1] == "in time (%)"
    assert [row[-1] for row in rows] == ["", f"{100 * drawn.tenants['t1'].in_time:.6g}"]
    assert 0 < drawn.tenants["t1"].in_time < 1


def test_a_gap_of_a_chart_is_no_row() -> None:
    arrivals = [Arrival(at, "rare" if at in (5.0, 95.0) else "often", 60, 30) for at in map(float, range(100))]
    drawn = simulate(RunSpec(ListWorkload("some", arrivals), "vtc", load_profile(), timeline=True))
    rows = read_csv(page([[drawn]]), "Response time")
    assert sum(row[0] == "rare" for row in rows) == 2


def test_a_bar_has_its_value_and_one_without_a_value_a_dash() -> None:
    drawn = inline("bars", grouped_bars("s", ["a", "b"], {"fcfs": [322.0, None], "vtc": [0.17, 0.0]}))
    for label in ("322", "0.17", "–", "0"):
        assert f">{label}</text>" in drawn
    many = [str(n) for n in range(13)]
    assert ">0.17</text>" not in inline("bars", grouped_bars("s", many, {"fcfs": [0.17] * 13, "vtc": [0.17] * 13}))


def test_runs_without_timelines_have_a_page_without_charts() -> None:
    text = page([[replace(runs(policies=("vtc",))[0][0], timeline=None)]])
    parsed(text)
    assert "<h2>Tenants</h2>" in text
    assert "<h2>Queue</h2>" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.1234, "0.123"), (12.0, "12"), (1234.0, "1.23k"), (2.5e6, "2.5M"), (-3000.0, "-3k")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
