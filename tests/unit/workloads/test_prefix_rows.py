"""Traces in Mooncake's format: what is read, the tenants of lines without one, and each mistake as one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.workloads.arrivals import Arrival, TraceError
from headgate.workloads.sources import open_workload
from headgate.workloads.traces import read_trace, scan_trace

LINE: dict[str, Any] = {"timestamp": 1500, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 2353]}


def written(folder: Path, *lines: object, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_a_line_is_a_request(tmp_path: Path) -> None:
    own = {**LINE, "timestamp": 2250.5, "tenant": "a", "prefix_group": "g", "later": {"x": 1}}
    assert read_trace(written(tmp_path, LINE, "", own)) == [
        Arrival(1.5, "tenant-3", 1200, 52, hash_ids=(46, 47, 2353)),
        Arrival(2.2505, "a", 1200, 52, hash_ids=(46, 47, 2353), prefix_group="g"),
    ]


def test_the_second_hash_gives_the_tenant_of_a_line_without_one(tmp_path: Path) -> None:
    """Lines of one conversation have it together; the first hash is a system prompt that all may have."""
    lines = [
        {**LINE, "input_length": 512 * len(hash_ids), "hash_ids": hash_ids}
        for hash_ids in ([0, 4, 5], [0, 4, 9, 10], [0, 7], [6], [])
    ]
    assert [row.tenant for row in read_trace(written(tmp_path, *lines))] == [
        *("tenant-0", "tenant-0", "tenant-3", "tenant-2", "tenant-0")
    ]


def test_a_tenant_can_be_named_for_a_whole_file_and_files_are_merged(tmp_path: Path) -> None:
    first, second = written(tmp_path, LINE, name="1.jsonl"), written(tmp_path, {**LINE, "timestamp": 0}, name="2.jsonl")
    workload = open_workload([f"a={first}", f"b={second}"])
    assert [(row.tenant, row.arrival_s) for row in workload] == [("b", 0.0), ("a", 1.5)]


def test_lines_that_are_not_in_order_are_sorted(tmp_path: Path) -> None:
    workload = open_workload([str(written(tmp_path, LINE, {**LINE, "timestamp": 0}))])
    assert [row.arrival_s for row in workload] == [0.0, 1.5]
    assert "line 2" in workload.notes[0]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: not a JSON object"),
        ("[1]", "line 2: not a JSON object"),
        ("[" * 60_000, "line 2: not a JSON object"),
        ('{"timestamp": ' + "9" * 5_000 + "}", "line 2: not a JSON object"),
        ({**LINE, "timestamp": -1}, "field 'timestamp': -1 is not a time of zero or more milliseconds"),
        ({**LINE, "timestamp": float("nan")}, "field 'timestamp': nan is not a time"),
        ({**LINE, "timestamp": True}, "field 'timestamp': True is not a time"),
        ({**LINE, "timestamp": 10**400}, "is no time in this unit: give the unit with --columns arrival=timestamp:s"),
        ({**LINE, "timestamp": 1e17}, "field 'timestamp': 1e+17 is no time in this unit"),
        ({**LINE, "input_length": 12.5}, "field 'input_length': 12.5 is not a whole number"),
        ({**LINE, "output_length": None}, "field 'output_length': None is not a whole number"),
        (
            {**LINE, "hash_ids": [1, 2]},
            "has 2 numbers for 1200 input tokens, and needs 3, one for each 512 tokens: leave",
        ),
        ({**LINE, "hash_ids": [1, 2, "x"]}, "field 'hash_ids': [1, 2, 'x'] is not a list of whole numbers"),
        ({**LINE, "hash_ids": [1, 2, -3]}, "is not a list of whole numbers"),
        ({**LINE, "tenant": 5}, "field 'tenant': 5 is no text"),
        ({**LINE, "tenant": "a" * 201}, "begins a name of 201 characters"),
        ({**LINE, "tenant": "\ud800"}, "has the character '\\ud800'"),
        ({**LINE, "prefix_group": ""}, "field 'prefix_group': '' is empty"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(tmp_path: Path, line: object, sentence: str) -> None:
    path = written(tmp_path, LINE, line)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_requests(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no requests in it"):
        read_trace(written(tmp_path, ""))


def test_a_trace_of_qwen_has_seconds_and_small_blocks(tmp_path: Path) -> None:
    """32 blocks of 16 tokens are one of 512: equal only if all before it are equal too."""
    hashes = list(range(38))
    first = {"chat_id": 1, "timestamp": 61.5, "input_length": 600, "output_length": 3, "hash_ids": hashes}
    longer = {**first, "chat_id": 2, "input_length": 1200, "hash_ids": [*hashes, *range(100, 137)]}
    other = {**longer, "hash_ids": [7, *hashes[1:], *range(100, 137)]}
    rows = read_trace(written(tmp_path, first, longer, other))
    assert [row.arrival_s for row in rows] == [61.5] * 3
    assert [row.hash_ids for row in rows] == [(0, 1), (0, 2, 3), (4, 5, 6)]
    with pytest.raises(TraceError, match="38 numbers for 100 input tokens, and needs 7, one for each 16 tokens"):
        read_trace(written(tmp_path, {**first, "input_length": 100}))


def test_a_line_needs_no_hashes_and_other_names_can_be_given(tmp_path: Path) -> None:
    """guidellm's and aiperf's traces have no hashes; data frames write 40.0."""
    path = written(tmp_path, {"ts_ms": 1500, "input_tokens": 300, "output_tokens": 40.0, "who": "a"}, name="mine.jsonl")
    (row,) = scan_trace(path, columns={"arrival": "ts_ms", "tenant": "who"})
    assert row == Arrival(1.5, "a", 300, 40)
    (row,) = scan_trace(path, columns={"arrival": "ts_ms"})
    assert row.tenant == "mine"
    (row,) = scan_trace(written(tmp_path, {**LINE, "timestamp": 3}), columns={"arrival": "timestamp"})
    assert row.arrival_s == 3.0  # a name without a unit is in seconds, as in a CSV
    (row,) = scan_trace(written(tmp_path, {**LINE, "timestamp": 3}), columns={"arrival": "timestamp:us"})
    assert row.arrival_s == 3e-6
    with pytest.raises(TraceError, match=r"has no field 'timestamp', .* --columns arrival=NAME"):
        read_trace(path)


def test_hashes_of_64_bits_stay_apart(tmp_path: Path) -> None:
    """dynamo pull request 12046: hashes that differ only above bit 31 became one."""
    hashes = [(1 << 63) + (block << 33) for block in range(3)]
    (row,) = scan_trace(written(tmp_path, {**LINE, "hash_ids": hashes}))
    assert row.hash_ids == tuple(hashes)
    with pytest.raises(TraceError, match=r"is not a list of whole numbers from 0 to 2\^64 - 1"):
        read_trace(written(tmp_path, {**LINE, "hash_ids": [1, 2, 1 << 64]}))


def test_a_prompt_of_a_million_tokens_fits_in_a_line(tmp_path: Path) -> None:
    """Its 62,500 hashes of Qwen's blocks are longer than any row of a CSV may be."""
    hashes = list(range(1 << 32, (1 << 32) + 62_500))
    line = {"chat_id": 1, "timestamp": 0, "input_length": 1_000_000, "output_length": 1, "hash_ids": hashes}
    (row,) = scan_trace(written(tmp_path, line))
    assert len(row.hash_ids) == 1954


def test_unix_times_count_from_the_first_line(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    trace = scan_trace(written(tmp_path, {**LINE, "timestamp": now_ms}, {**LINE, "timestamp": now_ms + 250}))
    assert [row.arrival_s for row in trace] == pytest.approx([0.0, 0.25], abs=1e-6)
    assert trace.last_arrival_s == pytest.approx(0.25, abs=1e-6)
    assert scan_trace(written(tmp_path, LINE)).last_arrival_s == 1.5
