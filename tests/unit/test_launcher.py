"""The launcher over SQS, with a queue that does not answer or refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Launcher
from dispatcher.processes import bootstrap
from dispatcher.processes.bootstrap import make_launcher
from dispatcher.settings.config import Config


class Queue:
    """A server in place of SQS. `silent`: it answers none of so many next requests. `status`: of its answers."""

    def __init__(self) -> None:
        self.silent = 0
        self.status = 200
        self.messages: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        request = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        if self.silent:
            self.silent -= 1
            await reader.read()
        else:
            text = json.loads(request)["MessageBody"]
            self.messages.append(text)
            digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            body = json.dumps({"MessageId": "1", "MD5OfMessageBody": digest}).encode()
            head = b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (self.status, len(body))
            writer.write(head + body)
        writer.close()


@pytest.fixture
async def queue(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Queue, Launcher]]:
    queue = Queue()
    server = await asyncio.start_server(queue.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    fields = {"ENDPOINT_URL_SQS": url, "DEFAULT_REGION": "us-east-1", "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}
    for name, value in fields.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(bootstrap, "SQS_READ_S", 0.05, raising=False)
    yield queue, make_launcher(Config(queue_url=f"{url}/1/q"))
    server.close()


async def test_a_connection_that_does_not_answer_is_given_up_and_the_message_sent_again(
    queue: tuple[Queue, Launcher],
) -> None:
    sqs, launcher = queue
    sqs.silent = 1
    async with asyncio.timeout(30):
        await launcher.launch("p-1", 2)
    assert [json.loads(message) for message in sqs.messages] == [{"id": "p-1", "attempt": 2}]


async def test_a_queue_that_refuses_is_an_error_that_callers_know(queue: tuple[Queue, Launcher]) -> None:
    sqs, launcher = queue
    sqs.status = 403
    with pytest.raises(StoreUnavailable, match="ClientError"):
        await launcher.launch("p-1", 2)
