"""The log of a server: every form of header that is known, and a sentence for each log that cannot be fitted to."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.simulator.fit.log import read_log
from headgate.workloads.arrivals import TraceError
from headgate.workloads.columns import parse_columns

HEADER = "arrival_s,ttft_s,latency_s,input_tokens,output_tokens"
ROWS = [f"{100 + n},0.25,{2 + n / 10},{50 + n},{10 + n}" for n in range(12)]


def write_log(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "server.csv"
    path.write_text("\n".join([header, *rows]) + "\n" if header else "\n".join(rows))
    return path


def test_times_count_from_the_first_arrival(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path, *ROWS))
    assert (log.name, len(log.requests), log.unserved) == ("server.csv", 12, 0)
    second = log.requests[1]
    assert (second.arrival_s, second.first_token_s, second.end_s) == pytest.approx((1.0, 1.25, 3.1))
    assert (second.input_tokens, second.output_tokens, second.tenant) == (51, 11, "all")


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Output_Tokens,Prompt_Tokens,ARRIVAL_MS,first_token_ms,end_ms,user", "{out},{prompt},{a}000,{a}250,{a}750,t"),
        ("timestamp,ttft_us,e2e_ms,contexttokens,generatedtokens,client", "{a},250000,750.0,{prompt},{out},t"),
        ("start,first_token,finish,input_length,output_length,tenant", "{a},{a}.25,{a}.75,{prompt}.0,{out},t"),
        (
            "arrival,ttft,latency,input_tokens,output_tokens,tenant,status",
            "2026-01-01T00:00:{a},0.25,0.75,{prompt},{out},t,",
        ),
    ],
)
def test_columns_are_found_by_their_names_and_units(tmp_path: Path, header: str, row: str) -> None:
    rows = [row.format(a=10 + number, prompt=50 + number, out=20) for number in range(10)]
    log = read_log(write_log(tmp_path, *rows, header=header))
    third = log.requests[2]
    assert (third.arrival_s, third.first_token_s, third.end_s) == pytest.approx((2.0, 2.25, 2.75))
    assert (third.input_tokens, third.output_tokens, third.tenant) == (52, 20, "t")


@pytest.mark.parametrize("row", ["130,,,50,10", "130,-1,-1.0000,50,10", "130,0,30,50,0"])
def test_a_request_that_was_not_served_is_left_out(tmp_path: Path, row: str) -> None:
    log = read_log(write_log(tmp_path, *ROWS, row))
    assert (len(log.requests), log.unserved) == (12, 1)


def test_a_given_column_may_have_a_unit(tmp_path: Path) -> None:
    path = write_log(tmp_path, *ROWS, header=HEADER.replace("ttft_s", "first"))
    assert read_log(path, parse_columns("ttft=first:ms")).requests[0].first_token_s == 0.25e-3
    assert read_log(path, parse_columns("ttft=first")).requests[0].first_token_s == 0.25
    path = write_log(tmp_path, *ROWS, header=HEADER.replace("ttft_s", "first_us"))
    assert read_log(path, parse_columns("ttft=first_us:ms")).requests[0].first_token_s == 0.25e-3
    path = write_log(tmp_path, *ROWS, header=HEADER.replace("ttft_s", "first:odd"))
    assert read_log(path, parse_columns("ttft=first:odd")).requests[0].first_token_s == 0.25


def test_a_given_column_comes_before_a_known_one(tmp_path: Path) -> None:
    path = write_log(tmp_path, *(f"{row},0.5" for row in ROWS), header=f"{HEADER},seen_s")
    log = read_log(path, parse_columns("ttft=seen_s"))
    assert log.requests[0].first_token_s == 0.5
    moments = read_log(path, parse_columns("first_token=arrival_s"))  # a moment, though a duration is known too
    assert moments.requests[3].first_token_s == moments.requests[3].arrival_s
    header = HEADER.replace("ttft_s", "first_token_s")
    path = write_log(tmp_path, *(f"{row},0.5" for row in ROWS), header=f"{header},seen_s")
    assert read_log(path, parse_columns("ttft=seen_s")).requests[0].first_token_s == 0.5


def test_rows_of_requests_that_were_not_served_are_counted(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path, *ROWS, "200,,,5,5"))
    assert (len(log.requests), log.unserved) == (12, 1)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "has 0 requests with a first token and an end, and a fit needs at least 10: record for longer"),
        (ROWS[:1], "has 1 request "),
        ([*ROWS, "99,0.1,0.2,5,5"], "line 14, column 'arrival_s': '99' is earlier than the row above: sort the rows"),
        (["1,-0.1,0.2,5,5"], "line 2, column 'ttft_s': '-0.1' is before the arrival: leave it empty"),
        (["1,0.3,0.2,5,5"], "column 'latency_s': '0.2' is before the first token: check which columns are durations"),
        (["1,0.3,,5,5"], "column 'latency_s': '' is empty: write it, or leave out the row"),
        (["nan,0.1,0.2,5,5"], "'nan' is no number: write seconds"),
        (["1,inf,0.2,5,5"], "'inf' is no number"),
        (["soon,0.1,0.2,5,5"], "'soon' is no time: write seconds"),
        (["1e17,0.1,0.2,5,5"], "is no time in this unit: end the column's name in its unit, _ms, _us or _ns"),
        (["1,0.1,0.2,-5,5"], "column 'input_tokens': '-5' is no whole number from 0 to"),
        (["1,0.1,0.2,5,-1"], "column 'output_tokens': '-1' is no whole number from 0 to"),
        (["1,-1,0.2,5,5"], "column 'ttft_s': '-1' is before the arrival"),
        (["1,0.1,0.2,nan,5"], "'nan' is no whole number"),
        (["1,0.1,0.2,5.5,5"], "'5.5' is no whole number"),
        (["1,0.1,0.2,5,5,6"], "line 2: 6 values for 5 columns"),
    ],
)
def test_a_bad_log_is_one_sentence(tmp_path: Path, rows: list[str], says: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_log(write_log(tmp_path, *rows))
    assert says in str(refused.value)
    assert "server.csv" in str(refused.value)


@pytest.mark.parametrize(
    ("header", "columns", "says"),
    [
        ("", "", "is empty: its first line must name the columns"),
        ("arrival_s,latency_s,input_tokens,output_tokens", "", "no column for first_token or ttft among arrival_s"),
        (
            "arrival_s,start_s,ttft,latency",
            "",
            "'arrival_s' and 'start_s' could each be arrival: choose with --columns",
        ),
        (
            '{"ttfts": [1], "itls": [[2]]}',
            "",
            "is JSON, and a fit reads a CSV: headgate trace FILE > log.csv makes one",
        ),
        (HEADER, "arrival=when", "no column 'when', which --columns names as arrival, among arrival_s"),
        (HEADER, "arrival=arrival_s:h", "--columns: 'h' is no unit of arrival; there are s, ms, us, ns"),
        ("arrival_s;latency_s;input_tokens", "", "line 1: its columns are separated by ';': write commas"),
    ],
)
def test_a_header_that_is_wrong(tmp_path: Path, header: str, columns: str, says: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_log(write_log(tmp_path, *(ROWS if header else ()), header=header), parse_columns(columns))
    assert says in str(refused.value)


@pytest.mark.parametrize("text", ["arrival", "arrival=", "speed=x"])
def test_columns_that_are_no_pairs(text: str) -> None:
    with pytest.raises(TraceError, match="expected KIND=NAME"):
        parse_columns(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_log(tmp_path / "absent.csv")
