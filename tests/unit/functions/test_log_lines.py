"""A front's log lines never stop it: a full pipe and a full disk cost lines, which are counted and named."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from functions.http_api.server import LogLines

LINE = "x" * 999


def read_all(reading: int) -> list[str]:
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode().splitlines()


def test_lines_arrive_whole_and_in_order() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing)
    for text in ("one\n", "t", "wo", "\nthree\nfour \ud800", "\n", "the rest"):
        assert lines.write(text) == len(text)
    lines.finish()
    os.close(writing)
    assert read_all(reading) == ["one", "two", "three", "four \\ud800", "the rest"]
    assert lines.dropped == 0


def test_a_pipe_that_is_not_read_drops_lines_and_says_so_once() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing, bytes_max=100_000)
    for _ in range(5000):  # 5 MB; the pipe holds 64 KB, and the queue 100
        lines.write(f"{LINE}\n")
    dropped = lines.dropped
    assert dropped > 4000
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(read_all(reading)))
    reader.start()
    lines.finish(within_s=60.0)
    os.close(writing)
    reader.join()
    told = [line for line in found if line != LINE]
    assert len(found) - len(told) + lines.dropped == 5000
    assert [json.loads(line)["level"] for line in told] == ["WARNING"] * len(told)
    assert sum(int(json.loads(line)["message"].split()[0]) for line in told) == lines.dropped
    assert len(told) <= 2, "it is said when the reader reads again, and not for each line"


def test_a_reader_that_is_slow_is_not_given_a_report_with_each_line() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing, bytes_max=100_000)
    found = b""
    for _ in range(30):  # the queue is always filled faster than it is read
        for _ in range(200):
            lines.write(f"{LINE}\n")
        found += os.read(reading, 10 * (len(LINE) + 1))
    assert lines.dropped > 4000
    assert b"dropped" not in found
    rest: list[str] = []
    reader = threading.Thread(target=lambda: rest.extend(read_all(reading)))
    reader.start()
    lines.finish(within_s=60.0)
    os.close(writing)
    reader.join()
    assert [line for line in rest if "dropped" in line] == rest[-1:], "it is said once, after the lines that waited"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    lines = LogLines(full)
    for _ in range(10):
        lines.write("line\n")
    lines.finish()
    os.close(full)
    assert lines.dropped == 10


def test_a_reader_that_is_gone_costs_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    lines = LogLines(writing)
    lines.write("line\n")
    lines.finish()
    os.close(writing)
    lines.write("after the end\n")
    assert lines.dropped == 2


def test_print_makes_one_line() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing)
    print(json.dumps({"metric": 1}), file=lines, flush=True)
    lines.finish()
    os.close(writing)
    assert read_all(reading) == ['{"metric": 1}']
