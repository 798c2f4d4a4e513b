"""Print what a run of the tests cost: the CPU seconds of each folder and of the slowest tests (`--slowest N`).

CPU seconds, not seconds of the clock: two processes share the tests, and the machine has other work. A test's figure
counts its process and the processes that it started and waited for, fixtures included; a fixture of a module or of the
session counts for the test that first needs it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import pytest

_CPU_S = "cpu_s"
_FOLDER_PARTS = 3
"""Folders are named by at most so many parts: tests/unit/shard."""
_measured_s = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", type=int, default=0, help="print each folder's CPU seconds and the N slowest tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--slowest") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Seconds(config.getoption("--slowest")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _measure(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _measure(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _measure(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.append((_CPU_S, item.stash.get(_measured_s, 0.0)))
    return report


class _Seconds:
    def __init__(self, slowest: int) -> None:
        self._slowest = slowest
        self._by_test: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        self._by_test[report.nodeid] += properties.get(_CPU_S, 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        by_folder: dict[str, list[float]] = defaultdict(list)
        for test, seconds in self._by_test.items():
            folder = PurePosixPath(test.partition("::")[0]).parent
            by_folder[str(PurePosixPath(*folder.parts[:_FOLDER_PARTS]))].append(seconds)
        terminalreporter.section(f"CPU seconds of {len(self._by_test)} tests: {sum(self._by_test.values()):.0f}")
        for name, folder_s in sorted(by_folder.items(), key=lambda pair: -sum(pair[1])):
            terminalreporter.write_line(f"{sum(folder_s):8.1f} s  {name} ({len(folder_s)} tests)")
        terminalreporter.section(f"the {self._slowest} slowest tests, in CPU seconds")
        for test, seconds in sorted(self._by_test.items(), key=lambda pair: -pair[1])[: self._slowest]:
            terminalreporter.write_line(f"{seconds:8.1f} s  {test}")


@contextmanager
def _measure(item: pytest.Item) -> Iterator[None]:
    began_s = _cpu_s()
    try:
        yield
    finally:
        item.stash[_measured_s] = _cpu_s() - began_s


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
