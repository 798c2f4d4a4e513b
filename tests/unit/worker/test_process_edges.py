"""The command line, and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from dispatcher.model.commands import Return
from dispatcher.processes.bootstrap import RealClock
from gpu_worker.__main__ import _journal, _start_engine, _stop_requested, bound
from gpu_worker.engines.interface import Engine
from gpu_worker.engines.registry import EngineUnavailable
from gpu_worker.service.logs import JsonLines
from gpu_worker.service.options import parse_options


def test_options_have_defaults() -> None:
    options = parse_options(["--engine", "modelled", "--worker-id", "w-1"])
    assert (options.engine, options.slots, options.port, options.worker_id) == ("modelled", 8, 0, "w-1")


def test_a_worker_delivers_only_the_reports_of_its_own_pool(tmp_path: Path) -> None:
    options = parse_options(["--home", str(tmp_path)])
    dead = _journal(options, "a", "w-1")
    dead.recover()
    dead.put(Return("p-1", 1, "failed", "w-1"))
    assert dead._fd is not None
    os.close(dead._fd)
    assert not _journal(options, "b", "w-2").recover()
    assert list(_journal(options, "a", "w-3").recover().values()) == [Return("p-1", 1, "failed", "w-1")]


async def test_an_engine_that_cannot_be_made_is_one_line() -> None:
    def make() -> Engine:
        raise RuntimeError("No GPU is found\nin two lines")

    with pytest.raises(EngineUnavailable, match=r"^the engine does not start: RuntimeError: No GPU is found$"):
        await _start_engine(make, RealClock())


async def test_when_no_engine_can_be_started_the_worker_ends_by_itself() -> None:
    serving, hopeless = asyncio.create_task(asyncio.sleep(100)), asyncio.Event()
    stopping = asyncio.create_task(_stop_requested(serving, hopeless, asyncio.Event()))
    await asyncio.sleep(0)
    assert not stopping.done()
    hopeless.set()
    assert not await stopping, "no signal came"
    serving.cancel()


def test_a_port_in_use_is_named() -> None:
    with bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} on 127.0.0.1 cannot be used"):
            bound("127.0.0.1", port)


def test_a_log_line_is_json_with_what_it_is_about() -> None:
    record = logging.makeLogRecord(
        {"name": "headgate.worker", "levelname": "INFO", "msg": "fin\nished %s", "args": (1,)}
    )
    record.execution = "i#1"
    line = JsonLines().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["logger"], fields["level"], fields["message"]) == ("headgate.worker", "INFO", "fin\nished 1")
    assert fields["execution"] == "i#1"
    assert set(fields) == {"at", "level", "logger", "message", "execution"}


def test_of_an_error_its_type_and_place_and_not_its_words() -> None:
    try:
        raise ValueError("canary")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    line = JsonLines().format(record)
    assert "canary" not in line
    fields = json.loads(line)
    assert fields["error"] == "ValueError"
    assert "test_of_an_error" in fields["where"][0]


def test_a_message_is_cut_and_any_value_can_be_logged() -> None:
    record = logging.makeLogRecord({"msg": "x" * 5000, "thing": object()})
    fields = json.loads(JsonLines().format(record))
    assert len(fields["message"]) == 1000
    assert fields["thing"] == "object"
