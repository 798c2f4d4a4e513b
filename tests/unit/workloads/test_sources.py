"""Workloads: the same arrivals in order of time, however often and wherever they are iterated over."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections import Counter
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.sampled import SampledWorkload
from headgate.workloads import traces as traces
from headgate.workloads.arrivals import Arrival, TraceError, WorkloadError
from headgate.workloads.sources import ListWorkload, Workload, open_workload
from headgate.workloads.traces import read_trace

SHARED = Path(__file__).parents[4] / "shared" / "traces"
HEADER = "arrival_s,tenant,input_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def check(workload: Workload) -> list[Arrival]:
    """What holds for every workload; its arrivals."""
    arrivals = list(workload)
    assert list(workload) == arrivals
    assert list(pickle.loads(pickle.dumps(workload))) == arrivals  # noqa: S301
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(arrivals))
    assert workload.requests == len(arrivals)
    assert workload.last_arrival_s == arrivals[-1].arrival_s
    assert {arrival.tenant for arrival in arrivals} <= set(workload.tenants)
    assert len(set(workload.tenants)) == len(workload.tenants)
    return arrivals


def test_a_trace(tmp_path: Path) -> None:
    workload = open_workload([written(tmp_path / "my.csv", HEADER + "0.5,b,1,2\n\n1,a,3,4\n1,b,5,6\n")])
    assert check(workload) == [Arrival(0.5, "b", 1, 2), Arrival(1.0, "a", 3, 4), Arrival(1.0, "b", 5, 6)]
    assert (workload.name, workload.tenants, workload.notes) == ("my", ("b", "a"), ())


def test_rows_out_of_order_are_sorted_and_reported(tmp_path: Path) -> None:
    workload = open_workload([written(tmp_path / "my.csv", HEADER + "5,a,1,1\n2,b,2,2\n3,c,3,3\n2,d,4,4\n")])
    assert [arrival.tenant for arrival in check(workload)] == ["b", "d", "c", "a"]
    (note,) = workload.notes
    assert "line 3" in note
    assert "sorted" in note


def test_too_many_rows_out_of_order_are_refused_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "SORTED_ROWS_MAX", 4)
    path = written(tmp_path / "my.csv", HEADER + "5,a,1,1\n2,b,2,2\n" + "6,a,1,1\n" * 3)
    with pytest.raises(TraceError, match=r"my\.csv, line 3: is earlier than a row above it"):
        open_workload([path])
    late = written(tmp_path / "late.csv", HEADER + "5,a,1,1\n" * 5 + "2,b,2,2\n")
    with pytest.raises(TraceError, match=r"late\.csv, line 7: is earlier"):
        open_workload([late])
    assert open_workload([written(tmp_path / "good.csv", HEADER + "5,a,1,1\n" * 5)]).requests == 5


def test_read_trace_holds_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "LISTED_ROWS_MAX", 2)
    path = tmp_path / "my.csv"
    written(path, HEADER + "5,a,1,1\n" * 3)
    with pytest.raises(TraceError, match="3 rows, more than the 2"):
        read_trace(path)


def test_a_bound_on_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "TENANTS_MAX", 2)
    with pytest.raises(TraceError, match=r"my\.csv, line 4, column 'tenant': 'c' is one tenant more than the 2"):
        open_workload([written(tmp_path / "my.csv", HEADER + "5,a,1,1\n5,b,1,1\n5,c,1,1\n")])
    with pytest.raises(TraceError, match="line 2, column 'tenant'"):
        open_workload([written(tmp_path / "long.csv", HEADER + f"5,{'x' * 201},1,1\n")])


def test_a_tenant_renames_those_of_ours_and_files_are_merged(tmp_path: Path) -> None:
    one = written(tmp_path / "one.csv", HEADER + "0,a,1,1\n2,b,2,2\n")
    two = written(tmp_path / "two.csv", HEADER + "1,c,3,3\n2,d,4,4\n9,c,5,5\n")
    workload = open_workload([f"x={one}", two])
    assert [(a.tenant, a.input_tokens) for a in check(workload)] == [("x", 1), ("c", 3), ("x", 2), ("d", 4), ("c", 5)]
    assert (workload.name, workload.tenants) == ("x+two", ("x", "c", "d"))


def test_azures_files_keep_their_clock_where_they_overlap(tmp_path: Path) -> None:
    chat = written(tmp_path / "conv.csv", AZURE + "2023-11-16 18:00:00,1,1\n2023-11-16 18:10:00,2,2\n")
    code = written(tmp_path / "code.csv", AZURE + "2023-11-16 18:01:00.5,3,3\n")
    workload = open_workload([f"chat={chat}", code])
    assert [(a.arrival_s, a.tenant) for a in check(workload)] == [(0.0, "chat"), (60.5, "code"), (600.0, "chat")]
    alone = open_workload([code])
    assert [a.arrival_s for a in check(alone)] == [0.0]


def test_azures_files_of_different_days_each_start_at_zero(tmp_path: Path) -> None:
    chat = written(tmp_path / "conv.csv", AZURE + "2024-05-10 00:00:00+00:00,1,1\n2024-05-10 00:00:02+00:00,2,2\n")
    code = written(tmp_path / "code.csv", AZURE + "2023-11-16 18:01:00.5,3,3\n2023-11-16 18:01:01.5,3,3\n")
    workload = open_workload([chat, code])
    assert [a.arrival_s for a in check(workload)] == [0.0, 0.0, 1.0, 2.0]
    assert "do not overlap" in workload.notes[0]


def test_azures_rows_out_of_order_count_from_the_earliest(tmp_path: Path) -> None:
    rows = "2023-11-16 18:00:02.3,1,1\n2023-11-16 18:00:00.1,2,2\n2023-11-16 18:00:09.7,3,3\n"
    workload = open_workload([written(tmp_path / "code.csv", AZURE + rows)])
    assert [(a.arrival_s, a.input_tokens) for a in check(workload)] == [(0.0, 2), (2.2, 1), (9.6, 3)]
    assert "line 3" in workload.notes[0]


def test_a_file_that_changed_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    workload = open_workload([written(path, HEADER + "0,a,1,1\n")])
    written(path, HEADER + "0,a,1,1\n1,b,x,1\n")
    with pytest.raises(TraceError, match=r"my\.csv: has changed since it was checked"):
        list(workload)
    path.unlink()
    with pytest.raises(TraceError, match=r"my\.csv: No such file"):
        list(workload)


@pytest.mark.parametrize(
    ("specs", "what"),
    [
        ([], "no workload"),
        (["none.csv"], "none.csv: No such file"),
        (["a=none.csv"], "none.csv: No such file"),
        (["=none.csv"], "'=none.csv': no tenant before the '='"),
        (["a="], "'a=': no file"),
        ([""], "'': no file"),
        (["a\0.csv"], "no file"),
        (["a=b.yaml"], "stands alone"),
        (["a.csv", "b.yml"], "stands alone"),
        (["."], "no regular file"),
        (["x" * 5000], "File name too long"),
    ],
)
def test_what_is_no_workload(specs: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        open_workload(specs)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(TraceError, match="no regular file"):
        open_workload([str(tmp_path / "pipe.csv")])


def test_an_equals_sign_in_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a=b.csv", HEADER + "0,t,1,1\n")
    assert open_workload(["a=b.csv"]).tenants == ("t",)
    assert open_workload(["./a=b.csv"]).tenants == ("t",)


def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write(HEADER)
        file.writelines(
            f"{number / 10},tenant-{number % 1000},{number % 512},{number % 256}\n" for number in range(60_000)
        )
    tracemalloc.start()
    try:
        workload = open_workload([str(path), f"again={path}"])
        requests = sum(1 for _ in workload)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert requests == workload.requests == 120_000
    assert peak_bytes < 1_000_000  # a list of them would take 20 MB


def test_a_list() -> None:
    workload = ListWorkload("mine", [Arrival(2.0, "b", 1, 1), Arrival(1.0, "a", 2, 2)], weights={"a": 2.0})
    assert [arrival.tenant for arrival in check(workload)] == ["a", "b"]
    assert workload.weights == {"a": 2.0}
    assert list(ListWorkload("none", [])) == []


@pytest.mark.parametrize("spacing", ["poisson", "uniform"])
def test_a_sampled_workload(spacing: str) -> None:
    base = [Arrival(0.0, "x", 10, 1), Arrival(0.0, "y", 20, 2)]
    workload = SampledWorkload.of(base, requests=20_000, tenants=10, rate_per_s=50.0, spacing=spacing)  # type: ignore[arg-type]
    arrivals = check(workload)
    # 4.5 standard deviations: of a count of 20,000 with chance 1/2, of one with chance 1/10, and of a sum of gaps.
    assert abs(Counter((a.input_tokens, a.output_tokens) for a in arrivals)[10, 1] - 10_000) < 4.5 * 70.7
    assert set(Counter(a.input_tokens / a.output_tokens for a in arrivals)) == {10.0}
    assert all(abs(count - 2_000) < 4.5 * 42.4 for count in Counter(a.tenant for a in arrivals).values())
    assert abs(workload.last_arrival_s - 400.0) < 4.5 * 400.0 / 20_000**0.5
    assert list(replace(workload, seed=1)) != arrivals
    assert len(workload.tenants) == 10


def test_a_sampled_workload_is_never_held() -> None:
    workload = SampledWorkload(((1, 1),), requests=50_000, tenant_count=100, rate_per_s=1.0)
    tracemalloc.start()
    try:
        assert sum(1 for _ in workload) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_sample_of_nothing() -> None:
    with pytest.raises(WorkloadError, match="at least one pair"):
        SampledWorkload.of([], requests=1, tenants=1, rate_per_s=1.0)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
def test_the_shared_traces() -> None:
    assert open_workload([str(SHARED / "vtc" / "real.csv")]).requests == 1500
    specs = [f"{name}={SHARED}/azure/AzureLLMInferenceTrace_{name}.csv" for name in ("conv", "code")]
    assert len(check(open_workload(specs))) == 19_366 + 8_819
    assert asdict(read_trace(SHARED / "vtc" / "real.csv")[0])["tenant"] == "client-13"
