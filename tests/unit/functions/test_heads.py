"""The heads of requests and answers: ambiguous ones, ids, the time to wait, and paths that end with a slash."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dispatcher.operations.limits import LimitSettings
from functions.http_api.refusals import retry_after
from tests.support.asgi import Call, Reply
from tests.support.world.memory_gate import CHAT, Gate
from tests.support.world.worker_client import UNREACHABLE

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
PAGE = "https://chat.example.com"


def key(gate: Gate, tenant: str = "a") -> str:
    return f"Bearer {gate.keys[tenant]}"


REPEATED: dict[str, Any] = {
    "authorization": lambda gate: [key(gate), key(gate, "b")],
    "the same key twice": lambda gate: [key(gate), key(gate)],
    "idempotency_key": ["one", "two"],
    "the same idempotency key twice": ["one", "one"],
    "content_type": ["application/json", "text/plain"],
}


@pytest.mark.parametrize("case", REPEATED)
async def test_a_header_that_names_one_thing_is_sent_once(gate: Gate, case: str) -> None:
    values = REPEATED[case]
    name = "authorization" if callable(values) else "content_type" if case == "content_type" else "idempotency_key"
    headers = {name: values(gate) if callable(values) else values}
    reply = await gate.caller().post(CHAT, BODY, **headers)
    assert (reply.status, reply.error["code"]) == (400, "repeated_header")
    assert reply.error["param"] == name.replace("_", "-")
    assert reply.headers["connection"] == "close"
    assert gate.workers.orders == []


@pytest.mark.parametrize("encoding", ["chunked", "gzip, chunked", "identity", ""])
async def test_a_body_has_one_length(gate: Gate, encoding: str) -> None:
    reply = await gate.caller().post(CHAT, BODY, content_length="5", transfer_encoding=encoding)
    assert (reply.status, reply.error["code"]) == (400, "ambiguous_length")
    assert reply.headers["connection"] == "close"
    assert gate.workers.orders == []


async def test_two_headers_that_are_lists_are_no_ambiguity(gate: Gate) -> None:
    reply = await gate.caller().post(CHAT, BODY, accept=["text/plain", "application/json"], x_forwarded_for=["a", "b"])
    assert reply.status == 200


async def test_a_refused_head_holds_nothing_and_can_be_read_by_a_page(gate: Gate) -> None:
    context = gate.process()
    context.cors_origins = (PAGE,)
    reply = await gate.caller(context=context).post(CHAT, BODY, idempotency_key=["1", "2"], origin=PAGE)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (400, PAGE)
    await gate.at_rest()


@pytest.mark.parametrize("encoding", ["identity", "Identity", "", " identity , identity", ["identity", "identity"]])
async def test_identity_changes_nothing(gate: Gate, encoding: Any) -> None:
    assert (await gate.caller().post(CHAT, BODY, content_encoding=encoding)).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "identity, br", ["identity", "zstd"], "identity;q=1"])
async def test_every_other_encoding_is_refused_wherever_it_stands(gate: Gate, encoding: Any) -> None:
    reply = await gate.caller().post(CHAT, BODY, content_encoding=encoding)
    assert (reply.status, reply.error["code"]) == (415, "unsupported_encoding")


async def test_a_byte_order_mark_before_a_body_is_ignored(gate: Gate) -> None:
    assert (await gate.caller().post(CHAT, raw=b"\xef\xbb\xbf" + json.dumps(BODY).encode())).status == 200


def refusals(gate: Gate) -> dict[str, tuple[int, Call]]:
    """Return a request for each way in which this front refuses, with its status."""
    a, nobody, full = gate.caller(), gate.caller(None), gate.process(LimitSettings(process_requests_max=0))
    paged = gate.process()
    paged.cors_origins = (PAGE,)
    return {
        "no key": (401, nobody.start("POST", CHAT, BODY)),
        "no JSON": (400, a.start("POST", CHAT, raw=b"{")),
        "unknown field": (400, a.start("POST", CHAT, {**BODY, "magic": 1})),
        "unknown model": (404, a.start("POST", CHAT, {**BODY, "model": "none"})),
        "no route": (404, a.start("POST", "/v1/none", BODY)),
        "another method": (405, a.start("DELETE", CHAT)),
        "too large": (413, a.start("POST", CHAT, raw=b"x" * 1_000_001)),
        "encoded": (415, a.start("POST", CHAT, BODY, content_encoding="gzip")),
        "ambiguous": (400, a.start("POST", CHAT, BODY, idempotency_key=["1", "2"])),
        "full": (429, gate.caller(context=full).start("POST", CHAT, BODY)),
        "no operator": (404, nobody.start("GET", "/operator")),
        "preflight": (400, gate.caller(context=paged).start(
            "OPTIONS", CHAT, origin="https://other.example", access_control_request_method="POST")),
    }  # fmt: skip


async def test_every_refusal_has_an_id_of_its_own(gate: Gate) -> None:
    replies = {name: (status, await call.finished()) for name, (status, call) in refusals(gate).items()}
    assert {name: reply.status for name, (_, reply) in replies.items()} == {
        name: status for name, (status, _) in replies.items()
    }
    ids = [reply.headers["x-request-id"] for _, reply in replies.values()]
    assert len(set(ids)) == len(ids)


async def test_an_error_of_a_call_has_the_id_of_the_call(gate: Gate) -> None:
    gate.workers.acts += [UNREACHABLE] * 3
    reply = await gate.caller().post(CHAT, BODY)
    assert reply.status == 502
    ended = gate.ends("failed")[-1]
    assert reply.headers["x-request-id"] == ended.id


async def test_a_defect_has_an_id_that_its_log_line_has(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: str | None) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(gate.context.directory, "tenant_of", broken)
    call = gate.caller().start("POST", CHAT, BODY)
    with pytest.raises(ZeroDivisionError):  # Starlette raises it again for the server
        await call.finished()
    assert (call.reply.status, call.reply.error["code"]) == (500, "internal_error")
    lines: list[Any] = [line for line in caplog.records if line.getMessage() == "unexpected error"]
    assert [line.request_id for line in lines] == [call.reply.headers["x-request-id"]]


@pytest.mark.parametrize(
    ("seconds", "header"),
    [(0.01, "1"), (1.0, "1"), (1.2, "2"), (7.4, "8"), (59.5, "60"), (2.5, "3"), (0.0, "1"), (None, None),
     (float("inf"), None), (float("nan"), None)],
)  # fmt: skip
def test_a_time_to_wait_is_rounded_up(seconds: float | None, header: str | None) -> None:
    assert retry_after(seconds).get("retry-after") == header


SLASHES = [("GET", "/v1/models/"), ("GET", "/v1/models/m/"), ("POST", f"{CHAT}/"), ("POST", f"{CHAT}//")]


@pytest.mark.parametrize(("method", "path"), [*SLASHES, ("GET", "/health/"), ("GET", "/ready/"), ("GET", "/docs/")])
async def test_a_path_that_ends_with_a_slash_is_served(gate: Gate, method: str, path: str) -> None:
    reply = await gate.caller().start(method, path, BODY if method == "POST" else None).finished()
    assert (reply.status, reply.headers.get("location")) == (200, None)


@pytest.mark.parametrize("path", ["/", "/v1/none/", "/operator/login/", "//"])
async def test_no_path_is_redirected_to_a_host(gate: Gate, path: str) -> None:
    reply = await gate.caller().get(path)
    assert (reply.status, reply.headers.get("location")) == (404, None)


async def test_the_operators_page_is_found_from_its_path_with_a_slash(gate: Gate) -> None:
    reply: Reply = await gate.caller(None).get("/operator/")
    assert (reply.status, reply.headers["location"]) == (308, "../operator")
    await asyncio.sleep(0)
