"""The routes of files and batches: what the unmodified openai client sees, forms, pages and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.batches import FileRecord
from dispatcher.model.errors import InvalidRequest
from dispatcher.operations.files import upload
from dispatcher.operations.limits import Limits, LimitSettings
from functions.http_api.routes import batches
from functions.http_api.routes.batches import page
from tests.support.asgi import Reply
from tests.support.world.memory_gate import CHAT, Gate
from tests.support.world.story import batch_gate, batch_process, ended, jsonl, line, parts_of, runner, started

pytest.importorskip("openai")
pytest.importorskip("httpx2")
from tests.support.world.sdk import client_of

BOUNDARY = "limit-of-parts"


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    made = await batch_gate()
    yield made
    await made.at_rest()


@pytest.fixture
def client(gate: Gate) -> Any:
    return client_of(gate)


def form(*parts: tuple[str, str, bytes]) -> bytes:
    """Return a form. A part is a name, further parameters of its disposition, and its content."""
    made = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"
        for name, more, content in parts
    ]
    return b"".join(made) + f"--{BOUNDARY}--\r\n".encode()


FILE = ("file", '; filename="f.jsonl"', b"{}\n")
PURPOSE = ("purpose", "", b"batch")


async def posted(gate: Gate, body: bytes, **headers: str) -> Reply:
    sent = {"content-type": f"multipart/form-data; boundary={BOUNDARY}", **headers}
    return await gate.caller(context=gate.contexts[-1]).post("/v1/files", raw=body, **sent)


async def test_the_client_sees_files_and_batches_as_openais(gate: Gate, client: Any) -> None:
    file = await client.files.create(file=("é.jsonl", jsonl(line("a"), line("b"))), purpose="batch")
    assert (file.object, file.filename, file.status) == ("file", "é.jsonl", "processed")
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert (batch.object, batch.status, batch.expires_at - batch.created_at) == ("batch", "validating", 24 * 3600)
    stored = await gate.store.batch("a", batch.id)
    assert stored is not None
    async with runner(gate):
        await ended(gate, stored)
    batch = await client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.errors) == ("completed", 2, None)
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (20, 6, 26)
    output = await client.files.content(batch.output_file_id)
    assert len(output.text.splitlines()) == 2
    assert [each.id async for each in client.files.list(purpose="batch")] == [file.id]
    assert (await client.files.delete(file.id)).deleted


async def test_the_client_pages_through_files_and_batches(gate: Gate, client: Any) -> None:
    batches = [await started(gate, line(str(number))) for number in range(5)]
    assert [each.id async for each in client.batches.list(limit=2)] == [each.id for each in reversed(batches)]
    newest = [each.input_file_id for each in reversed(batches)]
    assert [each.id async for each in client.files.list(limit=2)] == newest
    assert [each.id async for each in client.files.list(limit=2, order="asc")] == newest[::-1]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (form(FILE), "purpose", "missing_required_parameter"),
        (form(PURPOSE), "file", "missing_required_parameter"),
        (form(("file", "", b"no file"), PURPOSE), "file", "missing_required_parameter"),
        (form(FILE, ("purpose", "", b"fine-tune")), "purpose", "invalid_value"),
        (
            form(FILE, PURPOSE, ("expires_after[anchor]", "", b"created_at")),
            "expires_after[anchor]",
            "unknown_parameter",
        ),
        (form(FILE, PURPOSE, PURPOSE), "file", "invalid_form"),
        (form(FILE, FILE, PURPOSE), "file", "invalid_form"),
        (b"no form", "file", "invalid_form"),
        (b"", "file", "missing_required_parameter"),
    ],
)
async def test_a_form_that_is_wrong_is_refused(gate: Gate, body: bytes, param: str, code: str) -> None:
    reply = await posted(gate, body)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)
    assert gate.context.files.blobs == {}  # type: ignore[union-attr]


async def test_what_is_no_form_is_refused(gate: Gate) -> None:
    assert (await posted(gate, b"{}", **{"content-type": "application/json"})).status == 400
    assert (await posted(gate, form(FILE, PURPOSE), **{"content-encoding": "gzip"})).status == 415


async def test_a_file_of_a_gigabyte_is_refused_before_it_is_read(gate: Gate) -> None:
    reply = await posted(gate, b"", **{"content-length": "1000000000"})
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_a_file_that_is_longer_than_it_says_is_refused(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "FORM_BYTES", 400)
    batch_process(gate, file_bytes_max=100)
    large = form(("file", '; filename="f"', b"x" * 2_000), PURPOSE)
    assert (await posted(gate, large)).status == 413
    assert (await posted(gate, form(("file", '; filename="f"', b"x" * 101), PURPOSE))).status == 413
    assert (await posted(gate, form(("file", '; filename="f"', b"x" * 100), PURPOSE))).status == 200


async def test_a_tenant_has_a_bounded_number_of_uploads(gate: Gate) -> None:
    context = gate.context
    context.limits = Limits(LimitSettings(uploads_max=1))
    with context.limits.upload("a"):
        reply = await posted(gate, form(FILE, PURPOSE))
        assert (reply.status, reply.error["code"]) == (429, "uploads")
        assert "retry-after" in reply.headers
    assert (await posted(gate, form(FILE, PURPOSE))).status == 200
    assert context.limits.uploads.total == 0


async def test_a_service_without_files_says_so_on_each_route(gate: Gate) -> None:
    plain = gate.caller(context=gate.process())
    assert (await posted(gate, form(FILE, PURPOSE))).error["code"] == "batches_unavailable"
    for path in ("/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches", "/v1/batches/x"):
        reply = await plain.get(path)
        assert (reply.status, reply.error["code"]) == (400, "batches_unavailable")


async def test_unknown_ids_and_parameters_are_refused(gate: Gate) -> None:
    own = await upload(gate.context, "b", "f", parts_of(b"x"))
    caller = gate.caller()
    for path in ("/v1/files/file-x", f"/v1/files/{own.id}", f"/v1/files/{own.id}/content", "/v1/batches/batch_x"):
        reply = await caller.get(path)
        assert (reply.status, reply.error["code"]) == (404, "not_found")
    assert (await caller.post("/v1/batches/batch_x/cancel", {})).status == 404
    for query in ("page=2", "limit=0", "limit=x", "order=up", "limit=101"):
        assert (await caller.get("/v1/batches", query=query)).status == 400


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 7, 8])
def test_pages_together_have_each_object_once(order: str, limit: int) -> None:
    newest_first = [FileRecord(f"file-{number}", "a", "f", "batch", 1, 0.0, 1.0) for number in range(7, 0, -1)]
    seen: list[str] = []
    query = {"order": order, "limit": str(limit)}
    while True:
        found = page(newest_first, query, usual=20, most=100)
        seen += [each["id"] for each in found["data"]]
        if not found["has_more"]:
            break
        query["after"] = found["last_id"]
    expected = [each.id for each in newest_first]
    assert seen == (expected if order == "desc" else expected[::-1])


def test_an_empty_page_has_no_ids() -> None:
    assert page([], {}, usual=20, most=100) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip
    with pytest.raises(InvalidRequest):
        page([], {"limit": "١"}, usual=20, most=100)


async def test_a_front_in_lambda_refuses_a_batch_that_nobody_would_run(gate: Gate) -> None:
    context = gate.context
    context.settings = replace(context.settings, front="lambda")
    reply = await gate.caller().post("/v1/batches", {"input_file_id": "file-x"})
    assert (reply.status, reply.error["code"]) == (400, "batches_unavailable")
    assert "front: fargate" in reply.error["message"]
