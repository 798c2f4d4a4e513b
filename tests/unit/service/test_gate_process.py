"""`python -m dispatcher` as real processes on one SQLite file."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.model.commands import Offer, Waiting
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import NoLauncher, RealClock, make_links, make_store
from dispatcher.service.link.finder import Leadership, read_leadership
from dispatcher.settings.config import load_config
from tests.support.world.processes import accept, report

SECRET = "a secret of sixteen or more characters"

Processes = dict[str, subprocess.Popen[bytes]]
"""Gate processes by address."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HEADGATE_STORE": f"sqlite:{tmp_path}/gate.db", "HEADGATE_WORKER_SECRET": SECRET}


@pytest.fixture
def gates() -> Iterator[Processes]:
    """Processes by address; those that still run are killed at the end."""
    processes: Processes = {}
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start(environment: dict[str, str], gates: Processes) -> str:
    """Start a gate process, and return its address once it listens."""
    variables = {**os.environ, **environment}
    process = subprocess.Popen([sys.executable, "-m", "dispatcher"], env=variables, stdout=subprocess.PIPE)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["role"] == "gate"
    gates[ready["url"]] = process
    return str(ready["url"])


async def leader(store: Store) -> Leadership:
    while not (known := await read_leadership(store.log("default"))).address:
        await asyncio.sleep(0.01)
    return known


async def test_a_killed_leader_is_replaced_and_sigterm_ends_the_others(
    environment: dict[str, str], gates: Processes
) -> None:
    for _ in range(2):
        start(environment, gates)
    config, clock = load_config(environment), RealClock()
    store = make_store(config)
    link = make_links(config, store, clock, NoLauncher())[0]
    await link.do(report("w1", 1))
    first = await leader(store)
    assert first.address in gates
    assert isinstance(await link.do(accept(link.new_id(), link.process, clock.now())), Offer)
    gates[first.address].kill()
    assert isinstance(await link.do(accept(link.new_id(), link.process, clock.now())), Waiting)
    await link.close()
    await store.close()
    other = next(process for address, process in gates.items() if address != first.address)
    other.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(other.wait, 60) == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"HEADGATE_WORKER_SECRET": "short"}, "HEADGATE_WORKER_SECRET"),
        ({"HEADGATE_STORE": "dynamodb", "AWS_CONFIG_FILE": os.devnull}, "AWS_DEFAULT_REGION"),
    ],
    ids=["secret", "region"],
)
def test_a_missing_setting_is_one_line_and_exit_code_2(
    environment: dict[str, str], wrong: dict[str, str], named: str
) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [sys.executable, "-m", "dispatcher"]
    ended = subprocess.run(command, env={**own, **environment, **wrong}, capture_output=True, text=True)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert named in ended.stderr
