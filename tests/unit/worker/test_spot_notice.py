"""The notice that a spot instance ends: read by the worker, and written by a script of the instance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gpu_worker.service.spot_notice import LAST_S, READ_EVERY_S, SpotNotice
from tests.support.hang_guard import HANG_S
from tests.support.virtual_time import START, LoopClock

SCRIPT = Path(__file__).parents[3] / "infra" / "fleet" / "spot_notice.sh"
TOKEN = "a-token"


def write(path: Path, ends_at: float) -> None:
    moment = datetime.fromtimestamp(ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    path.write_text(json.dumps({"action": "terminate", "time": moment}))


@pytest.mark.virtual_time
async def test_a_notice_is_announced_at_once_and_the_last_moment_before_the_end(tmp_path: Path) -> None:
    clock = LoopClock()
    notice = SpotNotice(tmp_path / "notice", clock)
    watching = asyncio.ensure_future(notice.watch())
    await asyncio.sleep(30)
    assert not notice.announced.is_set()
    write(notice.path, clock.now() + 120)
    await notice.announced.wait()
    announced = clock.now() - START
    await watching
    assert notice.last_moment.is_set()
    last = clock.now() - START
    assert 30 <= announced <= 30 + 2 * READ_EVERY_S
    assert 149 - LAST_S <= last <= 151 - LAST_S


@pytest.mark.parametrize("text", ["", "{", "[]", '{"action": "stop"}', '{"time": 3}', '{"time": "soon"}'])
@pytest.mark.virtual_time
async def test_what_is_no_notice_announces_nothing(tmp_path: Path, text: str) -> None:
    notice = SpotNotice(tmp_path / "notice", LoopClock())
    notice.path.write_text(text)
    watching = asyncio.ensure_future(notice.watch())
    await asyncio.sleep(30)
    assert not notice.announced.is_set()
    watching.cancel()


@pytest.mark.virtual_time
async def test_a_notice_of_an_earlier_life_announces_nothing(tmp_path: Path) -> None:
    clock = LoopClock()
    notice = SpotNotice(tmp_path / "notice", clock)
    write(notice.path, clock.now() - 1)
    watching = asyncio.ensure_future(notice.watch())
    await asyncio.sleep(30)
    assert not notice.announced.is_set()
    watching.cancel()


class Metadata(BaseHTTPRequestHandler):
    """EC2's metadata, version 2: a token first, and a notice only when there is one."""

    notice = b""

    def do_PUT(self) -> None:
        self._answer(200 if self.path == "/latest/api/token" else 404, TOKEN.encode())

    def do_GET(self) -> None:
        is_known = self.headers.get("X-aws-ec2-metadata-token") == TOKEN
        found = self.path == "/latest/meta-data/spot/instance-action" and self.notice
        self._answer(401 if not is_known else 200 if found else 404, self.notice)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def metadata() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    Metadata.notice = b""
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def test_the_instance_writes_the_notice_when_there_is_one(metadata: str, tmp_path: Path) -> None:
    path = tmp_path / "notice"
    script = await asyncio.create_subprocess_exec("bash", str(SCRIPT), metadata, str(path), "0.1")
    try:
        await asyncio.sleep(0.5)
        assert not path.exists()
        Metadata.notice = b'{"action": "terminate", "time": "2026-11-25T22:08:00Z"}'
        async with asyncio.timeout(HANG_S):
            while not path.exists():
                await asyncio.sleep(0.05)
        assert json.loads(path.read_bytes())["action"] == "terminate"
    finally:
        script.kill()
        await script.wait()
