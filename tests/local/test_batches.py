"""OpenAI's batch API as processes, with the unmodified client: files in a folder and in S3, and its process killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.local.test_serve import usage
from tests.support.hang_guard import HANG_S
from tests.support.local.stack import ROOT, Served, eventually, serve, start, stop

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

TENANTS = """
tenants: {acme: {}, other: {}}
slo_classes: {chat: {first_token_s: 20}, night: {first_token_s: 3600, deferred: true}}
"""
LINES = 150
TOKENS = 40


def requests(model: str, count: int) -> bytes:
    lines = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": TOKENS},
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def created(client: OpenAI, content: bytes) -> Batch:
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(content), "requests.jsonl", "batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"night": "first"}
    )


def ended(client: OpenAI, batch: Batch) -> Batch:
    open_states = ("validating", "in_progress", "finalizing", "cancelling")
    return eventually(lambda: client.batches.retrieve(batch.id), lambda found: found.status not in open_states)


def lines_of(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("batches")
    tenants = folder / "tenants.yaml"
    tenants.write_text(TENANTS)
    found = serve(folder / "data", "--tenants", str(tenants))
    yield found
    found.stop()


def test_a_batch_from_upload_to_download(served: Served) -> None:
    client, other = served.openai(served.api_keys["acme"]), served.openai(served.api_keys["other"])
    content = requests(served.model, 3) + b"{no request\n"
    batch = created(client, content)
    assert batch.metadata == {"night": "first"}
    assert batch.input_file_id is not None
    with pytest.raises(openai.NotFoundError):
        other.batches.retrieve(batch.id)
    with pytest.raises(openai.NotFoundError):
        other.files.content(batch.input_file_id)
    over = ended(client, batch)
    assert over.status == "completed"
    assert over.request_counts is not None
    assert (over.request_counts.total, over.request_counts.completed, over.request_counts.failed) == (4, 3, 1)
    answers = lines_of(client, over.output_file_id)
    assert [line["custom_id"] for line in answers] == ["r0", "r1", "r2"]
    assert all(line["response"]["body"]["usage"]["completion_tokens"] == TOKENS for line in answers)
    assert [line["response"]["status_code"] for line in lines_of(client, over.error_file_id)] == [400]

    assert [found.id for found in client.batches.list()] == [batch.id]
    files = list(client.files.list())
    assert [file.purpose for file in files] == ["batch_output", "batch_output", "batch"]
    assert client.files.content(batch.input_file_id).content == content
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)
    with pytest.raises(openai.BadRequestError, match="it is completed"):
        client.batches.cancel(batch.id)


def test_a_killed_process_loses_no_line_and_charges_none_twice(served: Served) -> None:
    client, before = served.openai(served.api_keys["other"]), usage(served)
    batch = created(client, requests(served.model, LINES))

    def is_under_way(found: Batch) -> bool:
        return found.status == "in_progress" and usage(served).requests >= before.requests + LINES // 10

    eventually(lambda: client.batches.retrieve(batch.id), is_under_way)
    os.kill(served.pid("executor"), signal.SIGKILL)
    over = ended(client, batch)
    assert over.status == "completed"
    answers = lines_of(client, over.output_file_id)
    assert [line["custom_id"] for line in answers] == [f"r{number}" for number in range(LINES)]
    used = eventually(lambda: usage(served), lambda found: found.requests >= before.requests + LINES)
    assert used.requests - before.requests == LINES
    assert used.output_tokens - before.output_tokens == LINES * TOKENS


def test_a_cancelled_batch(served: Served) -> None:
    client = served.openai(served.api_keys["acme"])
    batch = created(client, requests(served.model, 1_000))
    eventually(lambda: client.batches.retrieve(batch.id), lambda found: found.status == "in_progress")
    assert client.batches.cancel(batch.id).status == "cancelling"
    over = ended(client, batch)
    assert over.status == "cancelled"
    assert over.request_counts is not None
    answered = lines_of(client, over.output_file_id) if over.output_file_id else []
    assert len(answered) == over.request_counts.completed < 1_000
    left = lines_of(client, over.error_file_id)
    assert len(answered) + len(left) == 1_000
    assert {line["error"]["code"] for line in left} == {"batch_cancelled"}


def test_the_files_of_the_local_stack_are_in_s3(tmp_path: Path) -> None:
    stack = start(tmp_path, "--engine", "modelled", "--fleet", str(ROOT / "examples" / "fleet.yaml"))
    try:
        key = next(iter(stack.api_keys.values()))
        client = OpenAI(base_url=stack.openai_base_url, api_key=key, max_retries=0, timeout=HANG_S)
        over = ended(client, created(client, requests("chat", 5)))
        assert over.status == "completed"
        assert len(lines_of(client, over.output_file_id)) == 5
    finally:
        stop(stack)
