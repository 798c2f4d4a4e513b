"""A worker in ECS is named by the id of its task, which a stand-in for ECS's metadata endpoint tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from dispatcher.ecs import TASK_ID
from gpu_worker.service.task_id import METADATA, TRIES, task_id

ID = "158d1c8083dd49d6b527399fd6414f5c"
ARN = f"arn:aws:ecs:us-west-2:111122223333:task/default/{ID}"


@contextmanager
def endpoint(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    """Serve the answer. Yield the address and the paths that were asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v4/container", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_id_is_the_last_part_of_the_tasks_arn_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with endpoint(200, json.dumps({"Cluster": "default", "TaskARN": ARN}).encode()) as (address, asked):
        assert task_id({METADATA: address}) == ID
    assert asked == ["/v4/container/task"]
    assert TASK_ID.fullmatch(ID), "the sweep protects a worker of this name"


def test_outside_ecs_there_is_none() -> None:
    assert task_id({}) == ""


@pytest.mark.parametrize(("status", "body"), [(500, b""), (200, b"no JSON"), (200, b"{}"), (200, b"[]")])
def test_an_endpoint_that_does_not_tell_it_is_asked_again_and_logged(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint(status, body) as (address, asked):
        assert task_id({METADATA: address}) == ""
    assert len(asked) == TRIES
    assert "the task's id cannot be read" in caplog.text
