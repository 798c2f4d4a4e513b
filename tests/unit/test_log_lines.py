"""A process's log lines never stop it: a full pipe and a full disk cost lines, which are counted and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dispatcher.log_lines import LogLines
from tests.support.hang_guard import HANG_S

LINE = "x" * 999
FILE_THAT_FILLS_UP = """
import resource, sys
from dispatcher.log_lines import LogLines
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, hard))
with open(sys.argv[1], "wb") as file:
    lines = LogLines(file.fileno())
    lines.write("".join(f"{number}{'x' * 999}\\n" for number in range(6)))
    while lines.dropped < 4:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    lines.write("after\\n")
    lines.finish(within_s=60.0)
"""
"""A program whose log is a file that has room for two lines and a half, and later for more: a disk that was full."""


def read_all(reading: int) -> list[str]:
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode().splitlines()


def read_rest(lines: LogLines, reading: int, writing: int) -> list[str]:
    """Return what the pipe gets until the stream has finished."""
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(read_all(reading)))
    reader.start()
    lines.finish(within_s=HANG_S)
    os.close(writing)
    reader.join()
    return found


def test_lines_arrive_whole_and_in_order() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing)
    for text in ("one\n", "t", "wo", "\nthree\nfour \ud800", "\n", "the rest"):
        assert lines.write(text) == len(text)
    lines.finish(within_s=HANG_S)
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
    found = read_rest(lines, reading, writing)
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
    lines.finish(within_s=HANG_S)
    os.close(writing)
    reader.join()
    assert [line for line in rest if "dropped" in line] == rest[-1:], "it is said once, after the lines that waited"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    lines = LogLines(full)
    for _ in range(10):
        lines.write("line\n")
    lines.finish(within_s=HANG_S)
    os.close(full)
    assert lines.dropped == 10


def test_a_disk_that_has_room_again_gets_whole_lines_and_the_count_of_the_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", FILE_THAT_FILLS_UP, str(log)], check=True, timeout=HANG_S)
    *kept, torn, after, told = log.read_text().splitlines()
    assert kept == [f"{number}{LINE}" for number in range(2)]
    assert f"2{LINE}".startswith(torn), "the part of a line that is in the file ends before the next line"
    assert after == "after"
    assert json.loads(told)["message"].startswith("4 log lines were dropped")


def test_of_lines_that_come_together_those_that_fit_are_kept_whole() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing, bytes_max=100_000)
    batch = [f"{number:04}{'x' * 995}" for number in range(5000)]
    lines.write("\n".join(batch) + "\n")
    assert 4800 < lines.dropped < 5000
    found = read_rest(lines, reading, writing)
    *kept, told = found
    assert set(kept) <= set(batch)
    assert kept == sorted(kept)
    assert len(kept) + lines.dropped == 5000
    assert json.loads(told)["message"].startswith(f"{lines.dropped} log lines were dropped")


def test_lines_of_two_streams_on_one_pipe_do_not_mix() -> None:
    """A container's two streams may be one pipe, and several processes may write to it."""
    reading, writing = os.pipe()
    streams = [LogLines(writing), LogLines(writing)]
    for stream, name in zip(streams, "ab", strict=True):
        stream.write(f"{name * 999}\n" * 2000)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(read_all(reading)))
    reader.start()
    for stream in streams:
        stream.finish(within_s=HANG_S)
    os.close(writing)
    reader.join()
    assert sorted(found) == ["a" * 999] * 2000 + ["b" * 999] * 2000


def test_a_reader_that_is_gone_costs_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    lines = LogLines(writing)
    lines.write("line\n")
    lines.finish(within_s=HANG_S)
    os.close(writing)
    lines.write("after the end\n")
    assert lines.dropped == 2


def test_print_makes_one_line() -> None:
    reading, writing = os.pipe()
    lines = LogLines(writing)
    print(json.dumps({"metric": 1}), file=lines, flush=True)
    lines.finish(within_s=HANG_S)
    os.close(writing)
    assert read_all(reading) == ['{"metric": 1}']


PRINTS_MUCH = """
import logging, sys
from pathlib import Path
from dispatcher.log_lines import LogStreams
with LogStreams() as streams:
    logging.basicConfig(stream=sys.stderr)
    for number in range(3000):
        logging.error("x" * 999)
        print("y" * 999)
    Path(sys.argv[1]).write_text("done")
"""


def test_a_process_goes_on_while_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    """A container's log driver may take no lines for a while. A gate or a worker must not stop for that."""
    done = tmp_path / "done"
    unread = subprocess.Popen(
        [sys.executable, "-c", PRINTS_MUCH, str(done)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with unread:
        assert unread.wait(HANG_S) == 0
    assert done.read_text() == "done"


def test_the_traceback_of_an_error_that_ends_the_process_is_written() -> None:
    fails = "with LogStreams():\n    print('first')\n    raise ValueError('why')"
    program = f"from dispatcher.log_lines import LogStreams\n{fails}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.stdout == "first\n"
    assert ended.stderr.endswith("ValueError: why\n")


WATCHED = """
import runpy, sys
from dispatcher.log_lines import LogLines
written, write = [], LogLines.write
LogLines.write = lambda self, text: written.append(text) or write(self, text)
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__")
except SystemExit:
    sys.exit(0 if "".join(written) else 1)
"""
"""Runs a module, and fails unless it has printed through LogLines."""


@pytest.mark.parametrize("module", ["dispatcher", "dispatcher.executor", "gpu_worker"])
def test_every_process_that_serves_prints_this_way(module: str) -> None:
    """Without an environment it cannot start, and says so. A front is tested in functions/test_ended_calls.py."""
    options = ["--engine", "modelled"] if module == "gpu_worker" else []
    command = [sys.executable, "-c", WATCHED, module, *options]
    ended = subprocess.run(command, env={}, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "HEADGATE_" in ended.stderr or "AWS_" in ended.stderr
