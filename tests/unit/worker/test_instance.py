"""What a worker learns of its instance: the notice of its end, the id of its task, the free memory of its GPUs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from dispatcher.ecs import TASK_ID
from gpu_worker.engines.sleeping_engines import free_device_bytes
from gpu_worker.service.spot_notice import LAST_S, READ_EVERY_S, SpotNotice
from gpu_worker.service.task_id import METADATA, TRIES, task_id
from tests.support.hang_guard import HANG_S
from tests.support.world.virtual_time import START, LoopClock

SCRIPT = Path(__file__).parents[3] / "infra" / "fleet" / "spot_notice.sh"


def notice_of(ends_at: float) -> str:
    moment = datetime.fromtimestamp(ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"action": "terminate", "time": moment})


@pytest.mark.virtual_time
async def test_a_notice_is_announced_at_once_and_the_last_moment_before_the_end(tmp_path: Path) -> None:
    clock = LoopClock()
    notice = SpotNotice(tmp_path / "notice", clock)
    watching = asyncio.ensure_future(notice.watch())
    await asyncio.sleep(30)
    assert not notice.announced.is_set()
    notice.path.write_text(notice_of(clock.now() + 120))
    await notice.announced.wait()
    announced = clock.now() - START
    await watching
    assert notice.last_moment.is_set()
    last = clock.now() - START
    assert 30 <= announced <= 30 + 2 * READ_EVERY_S
    assert 149 - LAST_S <= last <= 151 - LAST_S


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"action": "stop"}', '{"time": 3}', '{"time": "soon"}', notice_of(START - 1)]
)
async def test_what_is_no_notice_or_of_an_earlier_life_announces_nothing(tmp_path: Path, text: str) -> None:
    notice = SpotNotice(tmp_path / "notice", LoopClock())
    notice.path.write_text(text)
    watching = asyncio.ensure_future(notice.watch())
    await asyncio.sleep(30)
    assert not notice.announced.is_set()
    watching.cancel()


@contextmanager
def served(answer: Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]) -> Iterator[str]:
    """Serve these answers, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def test_the_instance_writes_the_notice_when_there_is_one(tmp_path: Path) -> None:
    """EC2's metadata, version 2: a token first, and a notice only when there is one."""
    path, notice = tmp_path / "notice", b""

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        if (request.command, request.path) == ("PUT", "/latest/api/token"):
            return 200, b"a-token"
        if request.headers.get("X-aws-ec2-metadata-token") != "a-token":
            return 401, b""
        is_found = request.command == "GET" and request.path == "/latest/meta-data/spot/instance-action" and notice
        return (200, notice) if is_found else (404, b"")

    with served(answer) as address:
        script = await asyncio.create_subprocess_exec("bash", str(SCRIPT), address, str(path), "0.1")
        try:
            await asyncio.sleep(0.5)
            assert not path.exists()
            notice = b'{"action": "terminate", "time": "2026-11-25T22:08:00Z"}'
            async with asyncio.timeout(HANG_S):
                while not path.exists():
                    await asyncio.sleep(0.05)
            assert json.loads(path.read_bytes())["action"] == "terminate"
        finally:
            script.kill()
            await script.wait()


def test_the_id_is_the_last_part_of_the_tasks_arn_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.service.task_id._ANSWER_S", HANG_S)  # a late answer would be asked for again
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    id_, asked = "158d1c8083dd49d6b527399fd6414f5c", []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append(request.path)
        arn = f"arn:aws:ecs:us-west-2:111122223333:task/default/{id_}"
        return 200, json.dumps({"Cluster": "default", "TaskARN": arn}).encode()

    with served(answer) as address:
        assert task_id({METADATA: f"{address}/v4/container"}) == id_
    assert asked == ["/v4/container/task"]
    assert TASK_ID.fullmatch(id_), "the sweep protects a worker of this name"


def test_outside_ecs_there_is_none() -> None:
    assert task_id({}) == ""


@pytest.mark.parametrize(("status", "body"), [(500, b""), (200, b"no JSON"), (200, b"{}"), (200, b"[]")])
def test_an_endpoint_that_does_not_tell_it_is_asked_again_and_logged(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append(request.path)
        return status, body

    with served(answer) as address:
        assert task_id({METADATA: f"{address}/v4/container"}) == ""
    assert len(asked) == TRIES
    assert "the task's id cannot be read" in caplog.text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def reports(folder: Path, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "mib"), [("echo 100; echo 20", 120), ("echo '[N/A]'", None), ("echo 100; exit 9", None), ("", 0)]
)
async def test_the_gpus_are_added_and_nonsense_is_nothing(folder: Path, script: str, mib: int | None) -> None:
    reports(folder, script)
    assert await free_device_bytes() == (None if mib is None else mib << 20)


async def test_only_the_visible_gpus_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports(folder, 'case "$*" in *"-i 1,2") echo 7;; *) echo 9;; esac')
    assert await free_device_bytes() == 9 << 20
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert await free_device_bytes() == 7 << 20


async def test_without_nvidia_smi_nothing_is_measured(folder: Path) -> None:
    assert await free_device_bytes() is None
