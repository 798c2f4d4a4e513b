"""moto as a server: `python -m headgate.local.moto_server [--host H] [--port P]`; port 0 takes a free port.

It prints one line of JSON, `{"url": ...}`, once it listens. Connections stay open: werkzeug's server closes each
connection after one answer, and waits 10 ms for more data before that.

Patches make moto 5.2.5 exact, and fast enough for a local stack. moto is pinned: each patch replaces its code.

1. `serve_one_at_a_time`: moto's DynamoDB loses concurrent updates in its threaded server (measured: it kept 1,193 to
   1,199 of 1,200). A lock around `DynamoHandler.call_action` makes every request atomic.
2. `undo_only_touched_items`: moto copies the whole table before each transaction, to restore it if the transaction
   fails: 25 ms at 3,000 items. The patch copies and restores only the touched items. It needs 1, as moto's way does.
3. `query_only_candidates`: moto sorts the whole table for each query (40 ms at 3,000 items) and then drops items that
   do not match. The patch passes it only the items of the queried partition, of the table or of the index.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import ThreadedWSGIServer

_installed = threading.Event()


def _install() -> None:
    """Patch moto in this process. Call it before the first request; further calls do nothing."""
    if _installed.is_set():
        return
    _installed.set()
    _serve_one_at_a_time()
    _undo_only_touched_items()
    _query_only_candidates()


def _serve_one_at_a_time() -> None:
    one_at_a_time = threading.Lock()
    original = DynamoHandler.call_action

    def call_action(self: Any) -> Any:
        with one_at_a_time:
            return original(self)

    DynamoHandler.call_action = call_action


@dataclass(frozen=True)
class _Before:
    """One item as it was before a transaction. `item` is None if it did not exist."""

    table: Any
    hash_key: Any
    range_key: Any
    item: Any

    def restore(self) -> None:
        partition = self.table.items if self.range_key is None else self.table.items[self.hash_key]
        key = self.hash_key if self.range_key is None else self.range_key
        if self.item is None:
            partition.pop(key, None)
        else:
            partition[key] = self.item


def _undo_only_touched_items() -> None:
    original = DynamoDBBackend.transact_write_items

    def transact_write_items(self: Any, transact_items: Sequence[dict[str, Any]]) -> None:
        before = [_before(self, item) for item in transact_items[:100]]
        stream_lengths = {shard: len(shard.items) for shard in _stream_shards(before)}
        try:
            with _skip_table_copies():
                original(self, transact_items)
        except Exception:
            # Backwards: an item named twice (which is an error) gets its first state.
            for touched in reversed(before):
                if touched is not None:
                    touched.restore()
            for shard, length in stream_lengths.items():
                del shard.items[length:]
            raise

    DynamoDBBackend.transact_write_items = transact_write_items


def _before(backend: Any, transact_item: dict[str, Any]) -> _Before | None:
    """Copy the item of an operation; None for a malformed operation, which moto refuses before it writes."""
    operation: dict[str, Any] = next(iter(transact_item.values()), {})
    table = backend.tables.get(operation.get("TableName"))
    key = operation.get("Key", operation.get("Item", {}))
    if table is None or any(name not in key for name in table.table_key_attrs):
        return None
    hash_key, range_key = backend.get_keys_value(table, key)
    return _Before(table, hash_key, range_key, copy.deepcopy(table.get_item(hash_key, range_key)))


def _stream_shards(before: Sequence[_Before | None]) -> set[Any]:
    return {touched.table.stream_shard for touched in before if touched and touched.table.stream_shard is not None}


@contextmanager
def _skip_table_copies() -> Iterator[None]:
    """Make deepcopy(table) return the table itself, so that moto's own backup and roll-back cost nothing.

    Safe only because requests are served one at a time: no other request copies a table meanwhile.
    """
    Table.__deepcopy__ = lambda table, _memo: table
    try:
        yield
    finally:
        del Table.__deepcopy__


def _query_only_candidates() -> None:
    original = Table.query
    index_name_at = 6  # its position among the arguments after the hash key in the call by moto's backend

    def query(self: Any, hash_key: Any, *args: Any, **kwargs: Any) -> Any:
        candidates = copy.copy(self)  # shallow: the items are the table's own
        if args[index_name_at] is None:
            candidates.items = {hash_key: self.items[hash_key]} if hash_key in self.items else {}
        else:
            candidates.items = _matching(self, kwargs.get("hash_key_conditions") or ())
        return original(candidates, hash_key, *args, **kwargs)

    Table.query = query


def _matching(table: Any, conditions: Sequence[tuple[str, Any]]) -> dict[Any, Any]:
    """Return the table's items, in its own shape, that meet the conditions: moto's filter, applied before it sorts."""

    def matches(item: Any) -> bool:
        return all(name in item.attrs and item.attrs[name] == value for name, value in conditions)

    if not table.has_range_key:
        return {key: item for key, item in table.items.items() if matches(item)}
    partitions = (
        (hash_key, {range_key: item for range_key, item in partition.items() if matches(item)})
        for hash_key, partition in table.items.items()
    )
    return {hash_key: partition for hash_key, partition in partitions if partition}


class KeepAliveRequestHandler(MotoRequestHandler):  # type: ignore[misc]  # moto is untyped
    """HTTP/1.1 with persistent connections. The body is read whole before the application sees it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: an answer is one packet, not a packet for each header

    def run_wsgi(self) -> None:
        self.environ = environ = self.make_environ()
        # Read to its end even if the application does not: the rest would look like the next request.
        environ["wsgi.input"] = io.BytesIO(self._read_body(environ))
        environ.pop("wsgi.input_terminated", None)
        self._send(*self._answer(environ))

    def _read_body(self, environ: dict[str, Any]) -> bytes:
        if environ.get("wsgi.input_terminated"):  # chunked: werkzeug's input ends by itself
            body = bytes(environ["wsgi.input"].read())
            environ["CONTENT_LENGTH"] = str(len(body))
            return body
        return bytes(self.rfile.read(int(environ.get("CONTENT_LENGTH") or 0)))

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:  # noqa: ARG001 - WSGI's signature
            started.append((status, headers))

        chunks = self.server.app(environ, start_response)
        try:
            body = b"".join(chunks)
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        status, headers = started[-1]
        return status, headers, body

    def _send(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if code not in ("204", "304"):
            self.send_header("Content-Length", self._content_length(headers, body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _content_length(self, headers: list[tuple[str, str]], body: bytes) -> str:
        """Return the body's length; for a HEAD answer the application's header, which is that of a GET."""
        header = {name.lower(): value for name, value in headers}.get("content-length")
        return header if header is not None and self.command == "HEAD" else str(len(body))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log no requests: at hundreds a second they would hide everything else."""


class MotoServer(ThreadedWSGIServer):
    """Serves each connection in a daemon thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256


def make_server(host: str, port: int) -> MotoServer:
    """Bind a server that does not serve yet; `server.port` is its port. Raises SystemExit if the port is in use."""
    _install()
    app = DomainDispatcherApplication(create_backend_app)
    return MotoServer(host, port, app, handler=KeepAliveRequestHandler)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m headgate.local.moto_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(argv)
    server = make_server(options.host, options.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write(json.dumps({"url": f"http://{options.host}:{server.port}"}) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
