"""Traces: read as published, and refused by file, line and column."""

from __future__ import annotations

import contextlib
import csv
import tempfile
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.tiers import TENANT_TIERS
from headgate.demo.scene import FLOOD, FLOOD_LOAD, QUIET, QUIET_LOAD, compose
from headgate.workloads.arrivals import TOKENS_MAX, Arrival, TraceError
from headgate.workloads.profiles import CHAT, CODE, SMALL_ENGINE, Profile, fitted, make_arrivals
from headgate.workloads.sources import open_workload
from headgate.workloads.traces import EPOCH_MIN_S, read_trace, scan_trace

AZURE = Path(__file__).parents[4] / "shared" / "traces" / "azure"
HEADER = "arrival_s,tenant,input_tokens,output_tokens\n"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_ours_in_order_of_time(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "2,b,10,20\n0.5,a,1,2\n")
    assert read_trace(path) == [Arrival(0.5, "a", 1, 2), Arrival(2.0, "b", 10, 20)]


def test_optional_columns(tmp_path: Path) -> None:
    header = "arrival_s,tenant,input_tokens,output_tokens,interaction,stage,tier,slo_ttft_ms,system_tokens\n"
    (read,) = read_trace(written(tmp_path, header + "0,a,10,20,i1,2,premium,200,4\n"))
    assert (read.interaction, read.stage, read.tier, read.slo_ttft_ms, read.system_tokens) == (
        "i1",
        2,
        "premium",
        200.0,
        4,
    )


def test_azures_counts_from_its_first_row(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", ""]
    first, second = read_trace(written(tmp_path, "\n".join(rows)), tenant="chat")
    assert (first.arrival_s, first.tenant, first.input_tokens) == (0.0, "chat", 374)
    assert second.arrival_s == pytest.approx(4.314579, abs=1e-5)


def test_azures_of_2024_name_a_zone_and_leave_out_a_zero_fraction(tmp_path: Path) -> None:
    rows = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.250000+00:00,1,2\n2024-05-10 00:00:01+00:00,3,4\n"
    )
    assert [row.arrival_s for row in read_trace(written(tmp_path, rows))] == [0.0, 0.75]
    mixed = rows + "2024-05-10 00:00:02,5,6\n"
    assert read_trace(written(tmp_path, mixed))[-1].arrival_s == 1.75


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens", ["5,m,120.0,10,130", "45,m,8,9,17"]),
        (
            "start_ms,model,user,prompt_tokens,completion_tokens",
            ["1700000000250,m,trace,120,10", "1700000040250,m,trace,8,9"],
        ),
        (
            "arrival_s,tenant,model,input_tokens,output_tokens",
            ["1700000000.25,trace,m,120.0,10", "1700000040.25,trace,m,8,9"],
        ),
        (
            "started,model,input_tokens,output_tokens",
            ["2026-11-28T10:00:00Z,m,120,10", "2026-11-28T11:00:40+01:00,m,8,9"],
        ),
    ],
)
def test_other_names_and_units_count_from_the_earliest_row(tmp_path: Path, header: str, rows: list[str]) -> None:
    columns = {"arrival": "started"} if header.startswith("started") else None
    for order in (rows, rows[::-1]):
        trace = scan_trace(written(tmp_path, "\n".join([header, *order]) + "\n"), columns=columns)
        assert trace.last_arrival_s == 40.0
        assert list(trace) == [Arrival(0.0, "trace", 120, 10, model="m"), Arrival(40.0, "trace", 8, 9, model="m")]


def test_files_of_one_time_are_on_one_clock(tmp_path: Path) -> None:
    early, late = tmp_path / "early.csv", tmp_path / "late.csv"
    early.write_text(HEADER + "1700000000,a,1,1\n1700000100,a,1,1\n")
    late.write_text("start_ms,prompt_tokens,output_tokens\n1700000050500,2,2\n")
    assert [(row.arrival_s, row.tenant) for row in open_workload([str(early), str(late)])] == [
        (0.0, "a"), (50.5, "late"), (100.0, "a")
    ]  # fmt: skip


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, "\ufeff" + HEADER + "0,a,1,2\n")) == [Arrival(0.0, "a", 1, 2)]


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zs", "Zl", "Zp"]), min_size=1, max_size=12)
NAMES = st.none() | WORDS
ROWS = st.integers(0, TOKENS_MAX).flatmap(
    lambda tokens: st.builds(
        Arrival,
        arrival_s=st.floats(0, EPOCH_MIN_S, exclude_max=True),
        tenant=WORDS,
        input_tokens=st.just(tokens),
        output_tokens=st.integers(0, TOKENS_MAX),
        interaction=NAMES,
        stage=st.none() | st.integers(0, 100),
        app=NAMES,
        model=NAMES,
        tier=st.none() | st.sampled_from([tier.value for tier in TENANT_TIERS]),
        slo_ttft_ms=st.none() | st.floats(0, 1e9),
        system_tokens=st.integers(0, tokens),
    )
)


@given(st.lists(ROWS, min_size=1, max_size=10))
def test_what_is_written_is_read(rows: list[Arrival]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(asdict(rows[0]))
            for row in rows:
                writer.writerow("" if value is None else value for value in asdict(row).values())
        assert read_trace(path) == sorted(rows, key=lambda row: row.arrival_s)


@given(st.binary(max_size=200))
def test_whatever_is_in_a_file_it_is_read_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        for start in (b"", HEADER.encode()):
            path.write_bytes(start + content)
            with contextlib.suppress(TraceError):
                assert read_trace(path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "arrival_s,tenant,input_tokens\n0,a,1\n",
            "line 1: no column for output_tokens among arrival_s, tenant, input",
        ),
        (
            "arrival_s;tenant;input_tokens\n0;a;1\n",
            "line 1: its columns are separated by ';': write commas",
        ),
        (HEADER + "2026-01-01,a,1,1\n", "'2026-01-01' is not a number: name the column timestamp for dates"),
        ("", "is empty: its first line must name the columns"),
        (HEADER + "1e17,a,1,1\n", "column 'arrival_s': '1e17' is no time in seconds: name the column arrival_ms"),
        (HEADER + "0,a,120.5,1\n", "line 2, column 'input_tokens': '120.5' is not a whole number"),
        (HEADER + "0,a,nan,1\n", "line 2, column 'input_tokens': 'nan' is not a whole number"),
        (HEADER + "0,a,1e9,1\n", "line 2, column 'input_tokens': '1e9' is not a whole number from 0 to"),
        (
            "timestamp,client,prompt_tokens,output_tokens\n5,,1,1\n",
            "column 'client': '' is empty: every row has a tenant",
        ),
        ("start,start_ms,prompt_tokens,output_tokens\n", "'start' and 'start_ms' could each be arrival: choose with"),
        (
            "timestamp,prompt_tokens,output_tokens\n1e17,1,1\n",
            "_us or _ns, or give it with --columns arrival=timestamp:ms",
        ),
        (HEADER, "no requests"),
        (HEADER + "-1,a,1,1\n", "line 2, column 'arrival_s'"),
        (HEADER + "nan,a,1,1\n", "line 2, column 'arrival_s'"),
        (HEADER + "0,a,1,1\nsoon,a,1,1\n", "line 3, column 'arrival_s': 'soon' is not a number"),
        (HEADER + "0,a,many,1\n", "line 2, column 'input_tokens': 'many' is not a whole number"),
        (HEADER + "0,a,1,-5\n", "line 2, column 'output_tokens'"),
        (HEADER + "0,a,1\n", "line 2, column 'output_tokens'"),
        (HEADER + "0,,1,1\n", "line 2, column 'tenant'"),
        (b"\xff\xfe\x00", "line 1: not UTF-8"),
        (HEADER.encode() + b"0,a,1,1\n0,\xff,1,1\n", "line 3: not UTF-8"),
        (HEADER + "0," + "a" * 70_000 + ",1,1\n", "line 2: longer than"),
        ("a" * 70_000, "line 1: longer than"),
        (HEADER.strip() + ',app\n0,a,1,1,"x\ny"\nsoon,a,1,1\n', "line 4, column 'arrival_s'"),
        (HEADER + '0,"a\nb",1,1\n', "column 'tenant': 'a\\nb' has the character '\\n': write a name of visible"),
        (HEADER + "0,\x1b[2Ja,1,1\n", "has the character '\\x1b'"),
        (HEADER + "0," + "a" * 201 + ",1,1\n", "begins a name of 201 characters: at most 200"),
        ("timestamp,user,prompt_tokens,output_tokens\n5,a\0b,1,1\n", "column 'user': 'a\\x00b' has the character"),
        (HEADER + '0,"a,1,1\n', "line 2: not CSV"),
        (HEADER + "0,a,1,1,5\n", "line 2: 5 values for 4 columns"),
        (HEADER + "0,a,1_000,1\n", "line 2, column 'input_tokens'"),
        (HEADER + "1_0,a,1,1\n", "line 2, column 'arrival_s'"),
        (HEADER + "0,a," + "9" * 5000 + ",1\n", "line 2, column 'input_tokens'"),
        (HEADER + "1e999,a,1,1\n", "line 2, column 'arrival_s'"),
        (HEADER.strip() + ",tenant\n0,a,1,1,b\n", "line 1: column 'tenant' appears twice"),
        (HEADER.strip() + ",system_tokens\n0,a,1,1,2\n", "line 2, column 'system_tokens'"),
        (HEADER.strip() + ",tier\n0,a,1,1,royal\n", "line 2, column 'tier': 'royal' is no tier"),
        (HEADER.strip() + ",slo_ttft_ms\n0,a,1,1,fast\n", "line 2, column 'slo_ttft_ms'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2, column 'timestamp'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, where: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert where in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.skipif(not AZURE.is_dir(), reason="the Azure traces are not here")
def test_the_published_traces_are_read_whole() -> None:
    chat = read_trace(AZURE / "AzureLLMInferenceTrace_conv.csv", tenant="chat")
    code = read_trace(AZURE / "AzureLLMInferenceTrace_code.csv", tenant="code")
    assert (len(chat), len(code)) == (19_366, 8_819)


@pytest.mark.parametrize("profile", [CHAT, CODE])
def test_a_profile_has_the_medians_it_names(profile: Profile) -> None:
    made = make_arrivals(profile, "t", 4001, Random(1))
    inputs = sorted(arrival.input_tokens for arrival in made)
    outputs = sorted(arrival.output_tokens for arrival in made)
    assert inputs[2000] == pytest.approx(profile.input_median, rel=0.1)
    assert outputs[2000] == pytest.approx(profile.output_median, rel=0.1)
    assert made[-1].arrival_s / 4000 == pytest.approx(profile.gap_mean_s, rel=0.15)
    assert make_arrivals(profile, "t", 50, Random(1)) == made[:50]


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
def test_fitted_lengths_are_within_bounds(lengths: list[int]) -> None:
    for arrival in fitted(Arrival(0.0, "t", n, n) for n in lengths):
        assert SMALL_ENGINE.input_min <= arrival.input_tokens <= SMALL_ENGINE.input_max
        assert SMALL_ENGINE.output_min <= arrival.output_tokens <= SMALL_ENGINE.output_max


def test_a_scene_asks_for_the_loads_it_says() -> None:
    chat = fitted(make_arrivals(CHAT, "x", 2000, Random(1)))
    code = fitted(make_arrivals(CODE, "x", 2000, Random(2)))
    scene = compose(code, chat, capacity_per_s=500.0, seconds=30.0)
    for tenant, load in ((QUIET, QUIET_LOAD), (FLOOD, FLOOD_LOAD)):
        own = [arrival for arrival in scene.arrivals if arrival.tenant == tenant]
        service = sum(arrival.input_tokens + 2 * arrival.output_tokens for arrival in own)
        assert service / 30.0 / 500.0 == pytest.approx(load, rel=0.15)
        assert 0.0 <= own[0].arrival_s <= own[-1].arrival_s <= 30.0


@pytest.mark.parametrize(
    "header",
    [
        "arrived_at,num_prefill_tokens,num_decode_tokens",  # Vidur and Splitwise
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",  # BurstGPT
        "launch_time,req_id,input_token_len,output_token_len,finish_time",  # LMCache's replayer
        "arrival_time,prompt_len,output_len",
        "request_id,startTime,endTime,completionStartTime,prompt_tokens,completion_tokens",  # LiteLLM's spend log
    ],
)
def test_columns_of_public_traces_are_known(tmp_path: Path, header: str) -> None:
    values = dict.fromkeys(("arrived_at", "Timestamp", "launch_time", "arrival_time"), "2")
    values |= {"startTime": "2026-01-01T00:00:02.5Z", "prompt_tokens": "30", "completion_tokens": "4"}
    values |= dict.fromkeys(("num_prefill_tokens", "Request tokens", "input_token_len", "prompt_len"), "30")
    values |= dict.fromkeys(("num_decode_tokens", "Response tokens", "output_token_len", "output_len"), "4.0")
    path = tmp_path / "public.csv"
    path.write_text(header + "\n" + ",".join(values.get(name, "9") for name in header.split(",")) + "\n")
    (row,) = read_trace(path)
    assert (row.arrival_s, row.tenant, row.input_tokens, row.output_tokens) == (0.0, "public", 30, 4)


def test_ids_of_clients_are_tenants(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("client_id,timestamp,input_tokens,output_tokens\nc7,0.5,3,4\n")
    assert [row.tenant for row in read_trace(path)] == ["c7"]


def test_requests_without_output_get_a_note(tmp_path: Path) -> None:
    """BurstGPT's traces with failures have them (HPMLL/BurstGPT, issue 11)."""
    path = tmp_path / "some.csv"
    path.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,3,0\n0,a,3,1\n1,a,3,0\n")
    (note,) = open_workload([str(path)]).notes
    assert "2 of 3 requests have no output tokens" in note


@pytest.mark.parametrize(("begins", "says"), [(b"\x1f\x8b\x08\x00", "gunzip"), (b"PAR1\x15\xff", "Parquet")])
def test_a_packed_file_says_what_it_is(tmp_path: Path, begins: bytes, says: str) -> None:
    path = tmp_path / "packed.csv"
    path.write_bytes(begins)
    with pytest.raises(TraceError, match=says):
        read_trace(path)
