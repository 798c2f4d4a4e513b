"""The demo's closing sentence and its JSON."""

from __future__ import annotations

import json

from headgate.demo.measure import RunReport, Sample, judge, report
from headgate.demo.report import as_json, in_words


def run(ttft_s: float, speed: float = 10.0) -> RunReport:
    return report(
        [Sample("quiet", "http", 0.0, ttft_s, 10.0, 1, 50, [ttft_s])] * 24
        + [Sample("flood", "http", 0.0, 9.0, 10.0, 1, 50, [9.0])],
        calibrations_per_s=(speed, speed),
    )


def words(before: RunReport, after: RunReport) -> str:
    return in_words({"fcfs": before, "headgate": after}, judge(before, after, "quiet"))


def test_the_sentence_says_what_happened() -> None:
    passed = words(run(8.0), run(1.0))
    assert "quiet's 24 requests had their first token within 1.00 s, and within 8.00 s without headgate" in passed
    assert passed.endswith("The engine did as much work as before.")
    slower = words(run(8.0), run(1.0, speed=10.8))
    assert slower.endswith("The engine did 93% of the work that it did without headgate.")
    assert "did not keep its promise here (quiet_ttft_p99)" in words(run(8.0), run(7.0))
    assert "cannot be compared" in words(run(8.0), run(7.0, speed=20.0))


def test_the_json_has_the_verdict_in_three_values() -> None:
    before, after = run(8.0), run(7.0, speed=20.0)
    found = json.loads(json.dumps(as_json({"fcfs": before, "headgate": after}, judge(before, after, "quiet"))))
    assert set(found["verdict"]) == {"passed", "outcome", "speed_change", "checks"}
    assert (found["verdict"]["passed"], found["verdict"]["outcome"]) == (False, "inconclusive")
    assert found["verdict"]["speed_change"] == 1.0
    assert found["runs"]["headgate"]["calibrations_per_s"] == [20.0, 20.0]
