"""`headgate doctor deployed --disturb` on real processes: fronts and workers are replaced while answers are streamed.

The processes are real, and get SIGTERM or SIGKILL. The service is a stand-in for ECS, because moto starts no task.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from headgate.deployment.model import Deployment
from headgate.doctor.deployed import changes
from headgate.doctor.deployed.changes import traffic_to
from headgate.doctor.deployed.checks import CHECKS
from headgate.doctor.deployed.stack import Deployed, DeployedStack
from headgate.doctor.finding import CheckResult, Finding
from tests.support.local.balancer import Balancer
from tests.support.local.stack import Running, eventually, start, stop

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
MODEL = "headgate-modelled"
CLUSTER = "arn:aws:ecs:us-east-1:123456789012:service/headgate"
FRONT, WORKERS = f"{CLUSTER}/headgate-front", f"{CLUSTER}/headgate-default-workers"
SURVIVES, DRAINS = "a stream survives a deployment", "a worker drains"
REPLACED = "workers are replaced without a gap"


class Ecs:
    """Stops one process of the stack with a signal: that of a front's deployment, or of a stopped worker. It is settled
    when the process has ended."""

    def __init__(self, stack: Running, how: signal.Signals, balancer: Balancer) -> None:
        self._stack, self._how, self._balancer = stack, how, balancer
        self._pid: int | None = None

    def update_service(self, **asked: Any) -> None:
        assert asked == {"cluster": "headgate", "service": asked["service"], "forceNewDeployment": True}
        if asked["service"] == "headgate-default-workers":
            self._end("worker")
            return
        assert asked["service"] == "headgate-front"
        if self._how is signal.SIGTERM:
            self._balancer.leave_out(living(self._stack, "front")[0]["url"])  # as a load balancer before the signal
        self._end("front")

    def stop_task(self, cluster: str, task: str, reason: str) -> None:
        assert (cluster, task) == ("headgate", "task-0")
        self._end("worker")

    def list_tasks(self, **asked: str) -> dict[str, Any]:
        return {"taskArns": ["task-0", "task-1"]}

    def describe_tasks(self, cluster: str, tasks: list[str]) -> dict[str, Any]:
        return {"tasks": [{"taskArn": each, "lastStatus": self._status()} for each in tasks]}

    def describe_services(self, cluster: str, services: list[str]) -> dict[str, Any]:
        rollout = {"rolloutState": "COMPLETED" if self._status() == "STOPPED" else "IN_PROGRESS"}
        return {"services": [{"runningCount": 1, "desiredCount": 1, "deployments": [rollout]}]}

    def _end(self, role: str) -> None:
        self._pid = living(self._stack, role)[0]["pid"]
        os.kill(self._pid, self._how)

    def _status(self) -> str:
        try:
            os.kill(self._pid or 0, 0)
        except ProcessLookupError:
            return "STOPPED"
        return "RUNNING"


def living(stack: Running, role: str) -> list[dict[str, Any]]:
    """Return the stack's processes of this role that have not ended."""
    return [each for each in stack.of_role(role) if psutil.pid_exists(each["pid"])]


@contextmanager
def listening(balancer: Balancer) -> Iterator[str]:
    """The balancer in a thread of its own, as the check has its own loop."""
    loop, address, over = asyncio.new_event_loop(), list[str](), asyncio.Event()
    ready = threading.Event()

    async def serve() -> None:
        async with balancer.listening() as url:
            address.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield address[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(60)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One stack for all tests: two of them end a front each, and two a worker each."""
    options = ("--engine", "modelled", "--slots", "8", "--fronts", "3", "--workers", "3")
    started = start(tmp_path_factory.mktemp("stack"), *options)
    yield started
    assert stop(started) == 0, "the stack ended by itself"


def disturbed(stack: Running, title: str, how: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setattr(changes, "POLL_S", 0.1)
    balancer = Balancer([each["url"] for each in living(stack, "front")])
    ecs = Ecs(stack, how, balancer)
    described = DeployedStack("headgate", "CREATE_COMPLETE", {}, {"AWS::ECS::Service": [FRONT, WORKERS]})
    pools = {"pools": {"default": {"model": f"s3://models/{MODEL}/"}}}
    with listening(balancer) as address:
        traffic = traffic_to(address, stack.api_keys["quiet"], MODEL, "run")
        deployed = Deployed(lambda _: ecs, described, Deployment.model_validate(pools), 0.0, traffic)
        return CHECKS[title](deployed, title)


@pytest.mark.parametrize("title", [SURVIVES, DRAINS, REPLACED])
def test_streams_end_whole_while_a_process_is_replaced(
    stack: Running, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = len(living(stack, "worker"))
    found = disturbed(stack, title, signal.SIGTERM, monkeypatch)
    assert found.result is CheckResult.OK, found
    assert "streams ended whole" in found.seen
    if title != SURVIVES:
        eventually(lambda: stack.top()["workers"], lambda left: len(left) == workers - 1)


def test_streams_that_break_are_found(stack: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9, which no process can prepare for."""
    found = disturbed(stack, SURVIVES, signal.SIGKILL, monkeypatch)
    assert found.result is CheckResult.FAILED, found
    assert "did not: " in found.seen
