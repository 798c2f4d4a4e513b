"""What another server could read in another way is refused, and does not reach the app. All over real sockets.

Sources: the suites and issues of llhttp (no. 876 and 877), httptools, h11 and uvicorn (no. 2722), and the published
attacks on other servers: CVE-2025-55315 (line ends in chunk extensions), CVE-2025-22871 (LF after a chunk's size),
CVE-2025-43859 (what stands after a chunk), CVE-2024-22019 (endless extensions), CVE-2023-30589 (CR as a line's end).
"""

from __future__ import annotations

import gc
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatcher.operations.limits import LimitSettings
from functions.http_api.protocol import BoundedHeads
from tests.support.asgi import Reply
from tests.support.hang_guard import HANG_S
from tests.support.world.memory_gate import CHAT
from tests.support.world.raw_front import RawFront, Seen, chat_body, parse_replies, raw_front, read_replies, wait_until
from tests.support.world.worker_client import Act

GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: KEY\r\n"
LAST = b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
"""A request after the one of a case. It must be read as itself, or not at all."""
TE = POST + b"transfer-encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
H2C = b"upgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABk\r\n"


def line(text: bytes) -> bytes:
    return text + b"\r\nhost: x\r\n\r\n"


def header(text: bytes) -> bytes:
    return GET + text + b"\r\n\r\n"


def length(value: bytes) -> bytes:
    return POST + b"content-length: " + value + b"\r\n\r\nhello"


def encoding(value: bytes) -> bytes:
    return POST + b"transfer-encoding: " + value + b"\r\n\r\n" + CHUNKS


REFUSED_HEADS = {
    "a folded header": header(b"a: b\r\n c"),
    "a folded encoding": encoding(b"\r\n chunked"),
    "a space before the first header": b"GET /health HTTP/1.1\r\n host: x\r\n\r\n",
    "LF at the end of all lines": b"GET /health HTTP/1.1\nhost: x\n\n",
    "LF at the end of a header": b"GET /health HTTP/1.1\r\nhost: x\na: b\r\n\r\n",
    "LF at the end of the head": GET + b"a: b\r\n\n",
    "CR within a value": header(b"a: b\rc: d"),
    "CR before another header (CVE-2023-30589)": header(b"a: \rxtransfer-encoding: chunked"),
    "a space before the colon": header(b"a : b"),
    "a tab before the colon": header(b"a\t: b"),
    "a space before the length's colon": POST + b"content-length : 5\r\n\r\nhello",
    "a space before the encoding's colon": POST + b"transfer-encoding : chunked\r\n\r\n" + CHUNKS,
    "a space in a name": header(b"a b: c"),
    "a delimiter in a name": header(b"a(b): c"),
    "no name": header(b": b"),
    "no colon": header(b"abc"),
    "NUL in a value": header(b"a: b\0c"),
    "a control character in a value": header(b"a: b\x01c"),
    "DEL in a value": header(b"a: b\x7fc"),
    "NUL in a name": header(b"a\0: b"),
    "UTF-8 in a name": header("é: b".encode()),
    "two lengths": length(b"5\r\ncontent-length: 5"),
    "two different lengths": length(b"5\r\ncontent-length: 6"),
    "two lengths in one line": length(b"5, 5"),
    "a length with a sign": length(b"+5"),
    "a negative length": length(b"-5"),
    "a hexadecimal length": length(b"0x5"),
    "a length with an underscore": length(b"1_0"),
    "a length with a point": length(b"5.0"),
    "a length of two numbers": length(b"5 5"),
    "a length in Arabic digits": length("٥".encode()),
    "an empty length": length(b""),
    "a length of 20 digits": length(b"99999999999999999999"),
    "identity, chunked": encoding(b"identity, chunked"),
    "chunked, identity": encoding(b"chunked, identity"),
    "gzip, chunked": encoding(b"gzip, chunked"),
    "chunked, chunked": encoding(b"chunked, chunked"),
    "a comma before chunked": encoding(b", chunked"),
    "a comma after chunked": encoding(b"chunked,"),
    "identity": encoding(b"identity"),
    "xchunked": encoding(b"xchunked"),
    "chunkedx": encoding(b"chunkedx"),
    "quoted chunked": encoding(b'"chunked"'),
    "chunked with a parameter": encoding(b"chunked;q=1"),
    "a vertical tab before chunked": encoding(b"\x0bchunked"),
    "no encoding": encoding(b""),
    "identity and chunked": encoding(b"identity\r\ntransfer-encoding: chunked"),
    "chunked and identity": encoding(b"chunked\r\ntransfer-encoding: identity"),
    "chunked twice": encoding(b"chunked\r\ntransfer-encoding: chunked"),
    "chunked in HTTP/1.0": TE.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKS,
    "chunked in HTTP/1.0, kept": TE.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nconnection: keep-alive\r\n") + CHUNKS,
    "a length and an encoding": encoding(b"chunked\r\ncontent-length: 5"),
    "an encoding and a length": length(b"5\r\ntransfer-encoding: chunked"),
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/0.9 with headers": b"GET /health\r\nhost: x\r\n\r\n",
    "HTTP/0.9 with LF, headers and a body (llhttp 877)": b"POST /x\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
    "the version 0.9": line(b"GET /health HTTP/0.9"),
    "the version 1.2": line(b"GET /health HTTP/1.2"),
    "the version 1.10": line(b"GET /health HTTP/1.10"),
    "the version 2.0": line(b"GET /health HTTP/2.0"),
    "the version 3.0": line(b"GET /health HTTP/3.0"),
    "a version in lower case": line(b"GET /health http/1.1"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a load balancer's PROXY line": b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + GET + b"\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "tabs in the request line": line(b"GET\t/health\tHTTP/1.1"),
    "a space before the method": line(b" GET /health HTTP/1.1"),
    "a space after the version": line(b"GET /health HTTP/1.1 "),
    "a space in the path": line(b"GET /health /x HTTP/1.1"),
    "a method in lower case": line(b"get /health HTTP/1.1"),
    "an unknown method": line(b"FOO /health HTTP/1.1"),
    "a method of 10 KB": line(b"A" * 10_000 + b" /health HTTP/1.1"),
    "CONNECT to a host": line(b"CONNECT h:443 HTTP/1.1"),
    "CONNECT to a path": line(b"CONNECT /health HTTP/1.1"),
    "a host as the path": line(b"GET h:443 HTTP/1.1"),
    "a URL without a path": line(b"GET http://h HTTP/1.1"),
    "a path without a slash": line(b"GET health HTTP/1.1"),
    "no path": line(b"GET  HTTP/1.1"),
    "a fragment": line(b"GET /health#a HTTP/1.1"),
    "a fragment after the query": line(b"GET /health?a#b HTTP/1.1"),
    "NUL in the path": line(b"GET /\0 HTTP/1.1"),
    "a control character in the path": line(b"GET /\x01 HTTP/1.1"),
    "UTF-8 in the path": line("GET /é HTTP/1.1".encode()),
    "Latin-1 in the query": line("GET /health?é HTTP/1.1".encode("latin-1")),
}

REFUSED_BODIES = {
    "an underscore in a size": b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n",
    "a sign before a size": b"+5\r\nhello\r\n0\r\n\r\n",
    "a negative size": b"-5\r\nhello\r\n0\r\n\r\n",
    "0x before a size": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a space after a size": b"5 \r\nhello\r\n0\r\n\r\n",
    "a space before a size": b" 5\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "an extension without a size": b";a\r\nhello\r\n0\r\n\r\n",
    "a size of 17 digits": b"fffffffffffffffff\r\nhello",
    "LF after a size (CVE-2025-22871)": b"5\nhello\r\n0\r\n\r\n",
    "LF in an extension (CVE-2025-55315)": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "LF after an extension": b"5;a\nhello\r\n0\r\n\r\n",
    "CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "CR and LF in a quoted extension": b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n',
    "NUL in an extension": b"5;a=\0\r\nhello\r\n0\r\n\r\n",
    "an empty extension": b"5;\r\nhello\r\n0\r\n\r\n",
    "LF after a chunk": b"5\r\nhello\n0\r\n\r\n",
    "nothing after a chunk": b"5\r\nhello0\r\n\r\n",
    "two other bytes after a chunk (CVE-2025-43859)": b"5\r\nhelloXX0\r\n\r\n",
    "LF after the last chunk": b"5\r\nhello\r\n0\n\n",
    "a request as a trailer": b"5\r\nhello\r\n0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
    "LF in a trailer": b"5\r\nhello\r\n0\r\na: b\nc: d\r\n\r\n",
    "a length as a trailer": b"5\r\nhello\r\n0\r\ncontent-length: 7\r\n\r\n",
    "an encoding as a trailer": b"5\r\nhello\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
}

HELLO = ("POST", CHAT, b"hello")
HEALTH = ("GET", "/health", b"")
READY = ("GET", "/ready", b"")
SERVED = {
    "a head as usual": (GET + b"\r\n", HEALTH),
    "HTTP/1.0 without a host, kept": (b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", HEALTH),
    "Latin-1 in a value": (header("a: é".encode("latin-1")), HEALTH),
    "UTF-8 in a value": (header("a: é€".encode()), HEALTH),
    "several spaces in the request line": (line(b"GET  /health  HTTP/1.1"), HEALTH),
    "empty lines before the request line": (b"\r\n\r\n" + GET + b"\r\n", HEALTH),
    "a whole URL": (line(b"GET http://h/health?q=1 HTTP/1.1"), HEALTH),
    "a whole URL with a password": (line(b"GET http://u:p@h:99/health HTTP/1.1"), HEALTH),
    "an asterisk": (line(b"OPTIONS * HTTP/1.1"), ("OPTIONS", "*", b"")),
    "an encoded NUL": (line(b"GET /a%00b HTTP/1.1"), ("GET", "/a\0b", b"")),
    "encoded dots": (line(b"GET /a/%2e%2e/health HTTP/1.1"), ("GET", "/a/../health", b"")),
    "dots": (line(b"GET /a/../health HTTP/1.1"), ("GET", "/a/../health", b"")),
    "an encoded slash": (line(b"GET /a%2fb HTTP/1.1"), ("GET", "/a/b", b"")),
    "a wrong escape": (line(b"GET /a%zz HTTP/1.1"), ("GET", "/a%zz", b"")),
    "an escape that is no UTF-8": (line(b"GET /a%ff HTTP/1.1"), ("GET", "/a\ufffd", b"")),
    "two slashes": (line(b"GET //health HTTP/1.1"), ("GET", "//health", b"")),
    "a backslash": (line(b"GET /\\health HTTP/1.1"), ("GET", "/\\health", b"")),
    "another protocol's method": (line(b"M-SEARCH /a HTTP/1.1"), ("M-SEARCH", "/a", b"")),
    "a head of 63,000 bytes": (header(b"a: " + b"b" * 63_000), HEALTH),
    "a length with zeros": (length(b"0005"), HELLO),
    "spaces around a length": (length(b" \t5 \t"), HELLO),
    "a name that is only like a length": (length(b"5\r\ncontent_length: 9"), HELLO),
    "a name that is only like an encoding": (length(b"5\r\ntransfer_encoding: chunked"), HELLO),
    "chunks": (encoding(b"chunked"), HELLO),
    "an encoding in capitals, with spaces": (encoding(b"  ChUnKeD "), HELLO),
    "a chunk with an extension": (TE + b"5;a=b\r\nhello\r\n0\r\n\r\n", HELLO),
    "a size with 20 zeros": (TE + b"0" * 20 + b"5\r\nhello\r\n0\r\n\r\n", HELLO),
    "a chunk for each byte": (TE + b"".join(b"1\r\n%c\r\n" % c for c in b"hello") + b"0\r\n\r\n", HELLO),
    "a body of GET": (GET + b"content-length: 5\r\n\r\nhello", HEALTH),
    "a request as a body": (GET + b"content-length: %d\r\n\r\n" % len(LAST) + LAST, HEALTH),
    "websocket": (header(b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13"), HEALTH),
    "h2c": (GET + H2C + b"\r\n", HEALTH),
    "h2c with a body (uvicorn 2722)": (POST + H2C + b"content-length: 5\r\n\r\nhello", HELLO),
    "h2c with chunks": (POST + H2C + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS, HELLO),
    "h2c with a request as a body": (
        POST + H2C + b"content-length: %d\r\n\r\n" % len(LAST) + LAST,
        ("POST", CHAT, LAST),
    ),
    "a protocol that Connection does not name": (POST + b"upgrade: h2c\r\ncontent-length: 5\r\n\r\nhello", HELLO),
    "an expectation of something else": (length(b"5\r\nexpect: 200-ok"), HELLO),
    "an expectation in a list": (length(b"5\r\nexpect: 100-continue, x"), HELLO),
    "an expectation in HTTP/1.0": (
        length(b"5\r\nexpect: 100-continue\r\nconnection: keep-alive").replace(b"/1.1", b"/1.0"),
        HELLO,
    ),
}
CLOSING = ("HTTP/1.0 without a host, kept", "an expectation in HTTP/1.0")
"""After these, the connection is closed: uvicorn keeps none of HTTP/1.0."""


@pytest.fixture(scope="module")
def front() -> Iterator[RawFront]:
    with raw_front() as made:
        yield made


def keyed(front: RawFront, raw: bytes) -> bytes:
    return raw.replace(b"KEY", b"Bearer " + front.gate.keys["a"].encode())


def read_parts(seen: list[Seen]) -> list[tuple[str, str, bytes]]:
    return [(each.method, each.path, each.body) for each in seen]


def cut(raw: bytes, in_pieces: bool) -> list[bytes]:
    """Return single bytes, and the rest where it is long."""
    count = min(len(raw), 500) if in_pieces else 0
    return [*(raw[at : at + 1] for at in range(count)), raw[count:]]


def check_refusal(reply: Reply, status: int = 400, code: str = "invalid_http") -> None:
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.error["type"] == "invalid_request_error"
    assert reply.headers["x-request-id"]
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("in_pieces", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("case", REFUSED_HEADS)
def test_a_head_that_is_refused_does_not_reach_the_app(front: RawFront, case: str, in_pieces: bool) -> None:
    [reply] = front.exchange(*cut(keyed(front, REFUSED_HEADS[case] + LAST), in_pieces))
    check_refusal(reply)
    assert front.seen == []


@pytest.mark.parametrize("case", REFUSED_BODIES)
def test_a_body_that_is_refused_is_never_whole(front: RawFront, case: str) -> None:
    [reply] = front.exchange(keyed(front, TE + REFUSED_BODIES[case] + LAST))
    check_refusal(reply)
    assert [(each.path, each.whole) for each in front.seen] in ([], [(CHAT, False)])


def test_the_app_learns_at_once_that_the_body_will_not_come(front: RawFront) -> None:
    with front.connect() as caller:
        caller.sendall(keyed(front, TE + b"5\r\nhello!"))
        [reply] = read_replies(caller)
        check_refusal(reply)
        wait_until(lambda: not front.server.server_state.tasks)
    assert front.seen[0].gone


def test_a_tab_after_the_encoding_is_refused(front: RawFront) -> None:
    """llhttp (no. 876) does not see the encoding, and fails at the body."""
    [reply] = front.exchange(keyed(front, encoding(b"chunked\t") + LAST))
    check_refusal(reply)
    assert not any(each.whole for each in front.seen)


@pytest.mark.parametrize("in_pieces", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("case", SERVED)
def test_a_request_that_is_served_ends_where_the_next_one_begins(front: RawFront, case: str, in_pieces: bool) -> None:
    raw, seen = SERVED[case]
    rest = b"" if in_pieces and case in CLOSING else LAST  # nothing may arrive after the end
    replies = front.exchange(*cut(keyed(front, raw + rest), in_pieces))
    if seen[2] == b"" and seen[1] == "/health":
        assert replies[0].status == 200
    assert all(reply.headers["x-request-id"] for reply in replies)
    assert read_parts(front.seen) == ([seen] if case in CLOSING else [seen, READY])
    assert len(replies) == len(front.seen)


@pytest.mark.parametrize("name", [b"host: y", b"authorization: Bearer b", b"content-type: a\r\ncontent-type: b"])
def test_a_header_that_names_one_thing_is_refused_twice(front: RawFront, name: bytes) -> None:
    [reply] = front.exchange(keyed(front, POST + name + b"\r\ncontent-length: 5\r\n\r\nhello" + LAST))
    check_refusal(reply, code="repeated_header")


def test_trailers_are_no_headers(front: RawFront) -> None:
    """Those of a request that waits would come to the app like headers: a key that no proxy has seen."""
    anonymous = POST.replace(b"authorization: KEY\r\n", b"") + b"transfer-encoding: chunked\r\n\r\n"
    trailers = b"0\r\nauthorization: KEY\r\nidempotency-key: k\r\n\r\n"
    replies = front.exchange(keyed(front, GET + b"\r\n" + anonymous + b"5\r\nhello\r\n" + trailers + LAST))
    assert [reply.status for reply in replies] == [200, 401, 200]
    assert [name for name, _ in front.seen[1].headers] == [b"host", b"transfer-encoding"]


def test_white_space_after_a_value_is_no_part_of_it(front: RawFront) -> None:
    replies = front.exchange(
        keyed(front, b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: KEY \t\r\n\r\n" + LAST)
    )
    assert [reply.status for reply in replies] == [200, 200]


@pytest.mark.parametrize("second", [b"bad\r\n\r\n", TE + b"+5\r\nhello\r\n0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_refusal_follows_the_answers_to_the_requests_before_it(front: RawFront, second: bytes) -> None:
    call = chat_body(max_tokens=3)
    first = POST + b"content-length: %d\r\n\r\n" % len(call) + call
    replies = front.exchange(keyed(front, first + GET + b"\r\n" + second + LAST))
    assert [reply.status for reply in replies] == [200, 200, 400]
    assert replies[0].json()["usage"]["completion_tokens"] == 3
    check_refusal(replies[2])
    assert [each.path for each in front.seen] == [CHAT, "/health"]


def test_a_body_that_is_longer_than_its_length_is_the_next_request(front: RawFront) -> None:
    replies = front.exchange(keyed(front, POST + b"content-length: 2\r\n\r\nhello" + LAST))
    assert [reply.status for reply in replies] == [400, 400]
    check_refusal(replies[1])
    assert read_parts(front.seen) == [("POST", CHAT, b"he")]


ENDS = {"connection: close": 200, "connection: keep-alive\r\nconnection: close": 200, "host: refused by the app": 400}


@pytest.mark.parametrize("head", ENDS)
@pytest.mark.parametrize("rest", [LAST, TE + b"5\r\nhel", b"bad\r\n\r\n", TE + b"+5\r\n"])
def test_nothing_is_served_after_the_last_request(front: RawFront, head: str, rest: bytes) -> None:
    [reply] = front.exchange(keyed(front, GET + head.encode() + b"\r\n\r\n" + rest))
    wait_until(lambda: not front.server.server_state.tasks)
    assert (reply.status, read_parts(front.seen)) == (ENDS[head], [HEALTH])


@pytest.mark.parametrize(("version", "head", "status"), [
    (b"1.1", b"connection: close", 413), (b"1.0", b"a: b", 413), (b"1.1", b"host: y", 400),
])  # fmt: skip
def test_a_last_answer_is_not_lost_though_the_body_is_not_read(
    front: RawFront, version: bytes, head: bytes, status: int
) -> None:
    """The caller sends all of the body before it reads. A reset would take the answer away."""
    request = POST.replace(b"1.1", version) + head + b"\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000
    [reply] = front.exchange(keyed(front, request + LAST))
    assert (reply.status, reply.error["type"]) == (status, "invalid_request_error")
    assert [each.path for each in front.seen] == [CHAT]


def test_requests_that_wait_on_one_connection_are_bounded(front: RawFront) -> None:
    replies = front.exchange((GET + b"\r\n") * 1000 + LAST)
    served = [reply.status for reply in replies].count(200)
    assert len(front.seen) == served >= 101
    if served < 1001:
        check_refusal(replies[-1])
        assert len(replies) == served + 1


@pytest.mark.parametrize("path", [b"/health", CHAT.encode()])
def test_a_body_that_was_expected_and_not_read_is_not_the_next_request(front: RawFront, path: bytes) -> None:
    """It waits for 100, gets another answer, and may send the body or not: so the connection ends."""
    head = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(LAST)
    with front.connect() as caller:
        caller.sendall(head)
        [reply] = read_replies(caller)
        caller.sendall(LAST)
    assert reply.status in (401, 405)
    assert [each.method for each in front.seen] == ["POST"]


def test_a_body_that_is_expected_is_asked_for(front: RawFront) -> None:
    with front.connect() as caller:
        caller.sendall(keyed(front, POST + b"expect: 100-Continue\r\ncontent-length: 5\r\n\r\n"))
        assert caller.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.sendall(b"hello" + LAST)
        assert [reply.status for reply in read_replies(caller)] == [400, 200]
    assert read_parts(front.seen) == [HELLO, READY]


# ── Too large ──────────────────────────────────────────────────────────────────────────────────────────────────────

MEGABYTE = 1_000_000
LARGE = {
    "a header of 70,000 bytes": header(b"a: " + b"b" * 70_000),
    "a header of 1 MB": header(b"a: " + b"b" * MEGABYTE),
    "a header of 1 MB that does not end": GET + b"a: " + b"b" * MEGABYTE,
    "a name of 1 MB": header(b"a" * MEGABYTE + b": b"),
    "100,000 headers": header(b"a: b\r\n" * 100_000),
    "257 headers": header(b"\r\n".join([b"a: b"] * 256)),
    "a URL of 1 MB": line(b"GET /" + b"a" * MEGABYTE + b" HTTP/1.1"),
    "1 MB of empty lines": b"\r\n" * (MEGABYTE // 2),
    "a chunk's extension of 1 MB (CVE-2024-22019)": TE + b"5;a=" + b"b" * MEGABYTE + b"\r\nhello\r\n0\r\n\r\n",
    "extensions of 1 MB": TE + (b"1;" + b"a" * 1000 + b"\r\na\r\n") * 1000 + b"0\r\n\r\n",
    "a trailer of 1 MB": TE + b"5\r\nhello\r\n0\r\na: " + b"b" * MEGABYTE + b"\r\n\r\n",
    "100,000 trailers": TE + b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    "trailers without an end": TE + b"0\r\n" + b"a: b\r\n" * 100_000,
}


@pytest.mark.parametrize("case", LARGE)
def test_what_is_no_content_is_bounded(front: RawFront, case: str) -> None:
    """The caller sends all of it before it reads: the answer must not be lost."""
    [reply] = front.exchange(keyed(front, LARGE[case] + LAST))
    check_refusal(reply, 431, "head_too_large")
    assert not any(each.whole for each in front.seen)


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_a_body_in_small_chunks_is_read(front: RawFront, chunk: int) -> None:
    content = b"x" * 200_000
    parts = [content[at : at + chunk] for at in range(0, len(content), chunk)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    assert front.exchange(keyed(front, TE + chunks + b"0\r\n\r\n" + LAST))[1].status == 200
    assert [len(each.body) for each in front.seen] == [200_000, 0]


BODIES = {
    "100,000 messages": chat_body(messages=[{"role": "user", "content": "x"}] * 100_000),
    "as many messages as fit": chat_body(messages=[{"role": "user", "content": ""}] * 30_000),
    "deep nesting": b'{"model": "m", "messages": ' + b"[" * 400_000 + b"]" * 400_000 + b"}",
    "nesting without an end": b"[" * 900_000,
    "deep objects": b'{"a":' * 150_000,
    "a number of 900,000 digits": b'{"model": "m", "seed": ' + b"9" * 900_000 + b"}",
    "100,000 fields": b"{" + b",".join(b'"%d": 1' % number for number in range(60_000)) + b"}",
}


@pytest.mark.parametrize("case", BODIES)
def test_a_hostile_body_is_refused_and_the_next_request_is_served(front: RawFront, case: str) -> None:
    body = BODIES[case]
    replies = front.exchange(keyed(front, POST + b"content-length: %d\r\n\r\n" % len(body) + body + LAST))
    assert replies[0].status == (413 if len(body) > MEGABYTE else 400)
    assert replies[0].error["type"] == "invalid_request_error"
    assert replies[1].status == 200


# ── Ends at the wrong moment ───────────────────────────────────────────────────────────────────────────────────────

CUT = {"nothing": b"", "a part of a head": GET, "a part of a body": TE + b"5\r\nhel", "a head": TE}


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("case", CUT)
def test_a_caller_that_disconnects_leaves_nothing(case: str, resets: bool) -> None:
    with raw_front() as front:
        caller = front.connect()
        caller.sendall(keyed(front, CUT[case]))
        if resets:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()
        assert [reply.status for reply in front.exchange(LAST)] == [200]
    assert not any(each.whole for each in front.seen if each.path == CHAT)


def test_a_caller_that_sends_no_more_has_disconnected(front: RawFront) -> None:
    """A closed connection looks the same, so its call ends at once, before it has used a worker for nobody."""
    call = chat_body(max_tokens=4000)
    with front.connect() as caller:
        caller.sendall(keyed(front, POST + b"content-length: %d\r\n\r\n" % len(call) + call))
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(1000) == b""
    assert front.exchange(LAST)[0].status == 200


def test_a_lost_connection_leaves_nothing_for_the_garbage_collector() -> None:
    """A collection stops the event loop, so nothing that comes with each connection may need one."""
    with raw_front() as front:
        front.exchange(LAST)
        gc.collect()
        gc.disable()
        try:
            for raw in (LAST, b"bad\r\n\r\n", GET + H2C + b"\r\n" + LAST, TE + b"+5\r\n") * 5:
                front.exchange(keyed(front, raw))
            front.connect().close()
            wait_until(lambda: not any(isinstance(each, BoundedHeads) for each in gc.get_objects()))
        finally:
            gc.enable()


# ── Slow callers ───────────────────────────────────────────────────────────────────────────────────────────────────


def trickle(caller: socket.socket, data: bytes) -> bytes:
    """Send byte by byte, while nothing comes back. Return what does come back until the connection is closed."""
    caller.settimeout(0.02)
    received = b""
    for byte in data:
        try:
            caller.send(bytes([byte]))
            if not (part := caller.recv(65536)):
                break
            received += part
        except TimeoutError:
            continue
        except OSError:
            break
    return received


def test_a_head_that_comes_byte_by_byte_does_not_keep_the_connection() -> None:
    with raw_front(idle_s=0.2) as front, front.connect() as caller:
        assert trickle(caller, GET + b"a" * 100_000) == b""
        assert front.seen == []


@pytest.mark.parametrize(
    ("head", "body"), [(TE, b"5;" + b"a" * 50_000), (POST + b"content-length: 50000\r\n\r\n", b" " * 50_000)]
)
def test_a_body_that_comes_byte_by_byte_is_refused(head: bytes, body: bytes) -> None:
    with raw_front(LimitSettings(body_s=0.3), idle_s=1.0) as front, front.connect() as caller:
        caller.sendall(keyed(front, head))
        [reply] = parse_replies(trickle(caller, body))
        assert (reply.status, reply.error["code"]) == (408, "request_timeout")
        assert reply.headers["x-request-id"]
        assert not front.seen[0].whole


def test_a_connection_stays_open_after_an_answer_that_took_longer_than_a_check() -> None:
    """A client sends its next request on it at once: it was lost when the check after the answer closed it."""
    with raw_front() as front, front.connect() as caller:
        body = chat_body(max_tokens=1)
        caller.sendall(keyed(front, POST + b"content-length: %d\r\n\r\n" % len(body) + body[:5]))
        wait_until(lambda: bool(front.seen))
        [protocol] = front.server.server_state.connections
        assert isinstance(protocol, BoundedHeads)

        def check() -> bool:
            """Let the timer's check happen now, and return whether the connection is still open."""
            done = threading.Event()
            front.loop.call_soon_threadsafe(protocol._check_head)
            front.loop.call_soon_threadsafe(done.set)
            assert done.wait(HANG_S)
            return not protocol.transport.is_closing()

        assert check()
        caller.sendall(body[5:])
        assert caller.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        wait_until(lambda: bool(protocol.cycle.response_complete))
        assert check(), "it is idle since the answer only"
        assert not check(), "now it was idle between two checks"


def test_a_caller_that_goes_on_after_a_refusal_is_disconnected() -> None:
    with raw_front(idle_s=0.2) as front, front.connect() as caller:
        caller.sendall(b"no HTTP\r\n\r\n")
        wait_until(lambda: not is_open(caller))


def is_open(caller: socket.socket) -> bool:
    try:
        caller.sendall(b"a" * 1000)
    except OSError:
        return False
    return True


LARGE_CALL = {
    "a stream": chat_body(max_tokens=4000, stream=True),
    "a whole answer": chat_body(max_tokens=4000),
}
PAGES = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 100


@pytest.mark.parametrize("case", [*LARGE_CALL, "requests that wait"])
def test_a_caller_that_does_not_read_is_disconnected(case: str) -> None:
    """The kernel would wait for ever until it takes the rest, and so would a graceful end of the connection."""
    with raw_front(LimitSettings(send_s=0.3), idle_s=1.0) as front, socket.socket() as caller:
        front.gate.workers.acts.append(Act(token_s=0.0, word="x" * 10_000))
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect(("127.0.0.1", front.port))
        front.client = caller.getsockname()[1]
        body = LARGE_CALL.get(case)
        caller.sendall(PAGES if body is None else keyed(front, POST + b"content-length: %d\r\n\r\n" % len(body) + body))
        wait_until(lambda: bool(front.seen))
        wait_until(lambda: not front.server.server_state.connections)


IDLE_CONNECTIONS = 10_000
BYTES_EACH_MAX = 50_000


def test_idle_connections_cost_little_and_stop_no_request() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(IDLE_CONNECTIONS, most - 1000)
    command = [sys.executable, "-m", "tests.support.world.raw_front"]
    with ExitStack() as held, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        port = int(process.stdout.readline())

        def answer() -> Reply:
            with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as caller:
                caller.sendall(LAST)
                [reply] = read_replies(caller)
                return reply

        assert answer().status == 200
        before = resident_bytes(process.pid)
        for number in range(count):
            caller = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG_S))
            caller.sendall(GET if number % 2 else b"")  # half of them have sent a part of a head
        assert answer().status == 200, "it comes after the others"
        each = (resident_bytes(process.pid) - before) / count
        assert each < BYTES_EACH_MAX, f"{count} idle connections take {each:.0f} bytes each"
        process.stdin.close()
    assert process.returncode == 0


def resident_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("rest", [b"bad\r\n\r\n", b""])
def test_an_answer_without_a_body_comes_before_a_refusal_and_an_end(front: RawFront, rest: bytes) -> None:
    """uvicorn writes nothing after the head of an answer to HEAD."""
    expects = b"" if rest else b"expect: 100-continue\r\ncontent-length: 5\r\n"
    with front.connect() as caller:
        caller.sendall(b"HEAD /health HTTP/1.1\r\nhost: x\r\n" + expects + b"\r\n" + rest)
        received = b""
        while part := caller.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"HTTP/1.1 400 Bad Request\r\n" in received) == bool(rest)
