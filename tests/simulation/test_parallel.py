"""Jobs in parallel processes: order, errors, a process that dies, and no process that outlives its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest

from headgate.simulator.parallel import ProcessDied, Processes
from tests.support.hang_guard import HANG_S
from tests.support.simulator.jobs import (
    after_its_gate,
    dies,
    dies_while_sending,
    fails_at_two,
    fails_oddly,
    heeds_interrupts,
    process_id,
    squared,
)

ROOT = Path(__file__).parents[2]


def test_one_process_is_this_one() -> None:
    with Processes(1) as pool:
        assert pool.map(process_id, [1, 2]) == [os.getpid()] * 2


def test_one_job_needs_no_other_process() -> None:
    with Processes(4) as pool:
        assert pool.map(process_id, [1]) == [os.getpid()]


def test_no_jobs() -> None:
    with Processes(4) as pool:
        assert pool.map(squared, []) == []


def test_results_are_in_the_order_of_the_jobs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with Processes(2) as pool:
        assert pool.map(after_its_gate, [(str(gate), ""), ("", str(gate))]) == [str(gate), ""]


def test_processes_are_kept_and_work_is_spread_over_them() -> None:
    progress: list[tuple[int, int]] = []
    with Processes(2, on_done=lambda done, total: progress.append((done, total))) as pool:
        first = set(pool.map(process_id, range(8)))
        assert set(pool.map(process_id, range(8))) <= first
        assert os.getpid() not in first
        assert pool.map(squared, range(20)) == [number * number for number in range(20)]
    assert progress[:9] == [(done, 8) for done in range(9)]
    assert active_children() == []


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_job_raises_is_raised_here(count: int) -> None:
    with pytest.raises(KeyError, match="two") as raised, Processes(count) as pool:
        pool.map(fails_at_two, range(5))
    assert active_children() == []
    if count > 1:
        assert "fails_at_two" in raised.value.__notes__[0]


def test_an_error_that_cannot_be_pickled_keeps_its_text() -> None:
    with Processes(2) as pool, pytest.raises(RuntimeError, match="Unpicklable: odd"):
        pool.map(fails_oddly, range(3))


def test_after_an_error_the_next_map_starts_afresh() -> None:
    with Processes(2) as pool:
        with pytest.raises(KeyError):
            pool.map(fails_at_two, range(5))
        assert pool.map(squared, range(5)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("job", [dies, dies_while_sending])
def test_a_process_that_dies_is_reported_with_its_cause(job: Callable[[int], int]) -> None:
    with Processes(2) as pool, pytest.raises(ProcessDied, match=r"signal 9.*--processes"):
        pool.map(job, range(2))
    assert active_children() == []


def test_no_processes_are_too_few() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Processes(0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_starter(tmp_path: Path, how: signal.Signals) -> None:
    fifo = tmp_path / "processes"
    os.mkfifo(fifo)
    starter = subprocess.Popen(
        [sys.executable, "-m", "tests.support.simulator.jobs", str(fifo)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=heeds_interrupts,
    )
    with fifo.open() as pipe:
        pids = [int(pipe.readline()) for _ in range(2)]
        assert len({*pids, starter.pid}) == 3
        if how is signal.SIGINT:
            os.killpg(starter.pid, how)  # as a terminal does it
        else:
            starter.send_signal(how)
        assert pipe.read() == ""  # ends when the last of them has let go of its end
    assert starter.wait(HANG_S) != 0
