"""The lines of a batch: read from its input file and checked, and their results.

The results are stored in parts while the batch runs, and put together into its output files at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dispatcher.fields.kinds import Reading, read_fields
from dispatcher.fields.tables import CUSTOM_ID_CHARS_MAX, LINE_TABLE
from dispatcher.model.batches import OUTPUT, Batch, FileRecord
from dispatcher.model.errors import AnsweredError, InvalidRequest, RequestTooLarge
from dispatcher.operations.context import Context
from dispatcher.operations.files import file_store, new_record
from dispatcher.strict_json import BODY_BYTES_MAX, parse_object

LINES_MAX = 50_000
"""The most requests of one batch, as OpenAI's."""
LINE_BYTES_MAX = BODY_BYTES_MAX + 4096
"""A request's body and what stands around it."""
_ERRORS_MAX = 100
"""The most errors that a batch reports about its file."""
_AT_ONCE_BYTES = 1_000_000
"""After so many bytes, the first reading of a file lets the process do other work."""


class Line(NamedTuple):
    """A line that is not blank, and its place in the file.

    `number` counts all lines of the file from 0. `start` and `end` are bytes of the file.
    """

    number: int
    start: int
    end: int
    text: bytes | None
    """None if the line is longer than LINE_BYTES_MAX."""


async def lines_of(parts: AsyncIterable[bytes], start: int = 0, number: int = 0) -> AsyncGenerator[Line, None]:
    """Yield the lines of a file whose bytes from `start` on are `parts`. There begins line `number`."""
    open_line = bytearray()
    skipped = 0
    """The bytes of the present line that were dropped because it is too long."""
    async for part in parts:
        for piece in _pieces(part):
            open_line += piece
            if len(open_line) > LINE_BYTES_MAX:
                skipped += len(open_line)
                open_line.clear()
            if piece.endswith(b"\n"):
                end = start + skipped + len(open_line)
                if skipped or open_line.strip():
                    yield Line(number, start, end, None if skipped else bytes(open_line))
                start, number, skipped = end, number + 1, 0
                open_line.clear()
    if skipped or open_line.strip():
        yield Line(number, start, start + skipped + len(open_line), None if skipped else bytes(open_line))


def _pieces(part: bytes) -> list[bytes]:
    r"""Split at \n only: a \r may stand within a line, or before its end."""
    *whole, rest = part.split(b"\n")
    return [each + b"\n" for each in whole] + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the first reading of the file found. `errors`: why the batch cannot begin, as OpenAI's objects."""

    lines: int
    errors: tuple[dict[str, Any], ...] = ()


async def inspect(lines: AsyncGenerator[Line, None]) -> Inspection:
    """Count the lines and compare their ids. A line that is wrong in itself is no error here: it fails alone."""
    seen: dict[str, int] = {}
    errors: list[dict[str, Any]] = []
    count = read = 0
    async with aclosing(lines):
        async for line in lines:
            count, read = count + 1, read + line.end - line.start
            if count > LINES_MAX:
                message = f"The file has more than {LINES_MAX} requests. Make several batches."
                return Inspection(0, (_error("too_many_requests", message, None),))
            own = custom_id_of(line)
            if own in seen and len(errors) < _ERRORS_MAX:
                message = f"Line {line.number + 1} has the custom_id of line {seen[own] + 1}: each must be different."
                errors.append(_error("duplicate_custom_id", message, line.number + 1))
            if own is not None:
                seen.setdefault(own, line.number)
            if read > _AT_ONCE_BYTES:
                read = 0
                await asyncio.sleep(0)
    if not count:
        errors.append(_error("empty_file", "The file has no requests.", None))
    return Inspection(count, tuple(errors))


def _error(code: str, message: str, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}


def custom_id_of(line: Line) -> str | None:
    """Return the line's `custom_id`; None if it has none that can be read."""
    try:
        found = json.loads(line.text or b"")
    except (ValueError, RecursionError):
        return None
    own = found.get("custom_id") if isinstance(found, dict) else None
    return own if isinstance(own, str) and len(own) <= CUSTOM_ID_CHARS_MAX else None


def fields_of(line: Line, endpoint: str) -> dict[str, Any]:
    """Return the body of a line's request. Raises InvalidRequest."""
    if line.text is None:
        raise RequestTooLarge(f"The line has {line.end - line.start} bytes; at most {LINE_BYTES_MAX} are accepted.")
    fields = read_fields(parse_object(line.text, bytes_max=LINE_BYTES_MAX), LINE_TABLE, "", Reading())
    if fields["url"] != endpoint:
        raise InvalidRequest(f"`url` must be the endpoint of the batch, {endpoint}.", "url")
    if not isinstance(fields["body"], dict):
        raise InvalidRequest("`body` must be an object.", "body")
    body: dict[str, Any] = fields["body"]
    return body


DONE, FAILED = b"+", b"-"
"""The first byte of a line in a part: it belongs to the output file, or to the error file."""


class LineResult(NamedTuple):
    """The result of one line. `text`: its line in the output file or, unless it `is_done`, in the error file."""

    line: Line
    text: bytes
    is_done: bool
    input_tokens: int = 0
    output_tokens: int = 0
    is_given_up: bool = False
    """True if the batch ended before the line had an answer."""


def done(batch: Batch, line: Line, custom_id: str | None, call_id: str, body: Mapping[str, Any]) -> LineResult:
    usage = body["usage"]
    input_tokens = usage["input_tokens"] if "input_tokens" in usage else usage["prompt_tokens"]
    output_tokens = usage.get("output_tokens", usage.get("completion_tokens", 0))
    text = _line(batch, line, custom_id, {"status_code": 200, "request_id": call_id, "body": body}, None)
    return LineResult(line, text, True, input_tokens, output_tokens)


def failed(batch: Batch, line: Line, custom_id: str | None, call_id: str, error: AnsweredError) -> LineResult:
    response = {"status_code": error.status, "request_id": call_id, "body": error.body()}
    return LineResult(line, _line(batch, line, custom_id, response, None), False)


def given_up(batch: Batch, line: Line, custom_id: str | None, code: str, message: str) -> LineResult:
    text = _line(batch, line, custom_id, None, {"code": code, "message": message})
    return LineResult(line, text, False, is_given_up=True)


def _line(batch: Batch, line: Line, custom_id: str | None, response: object, error: object) -> bytes:
    """Return one line of OpenAI's output."""
    name = f"batch_req_{batch.id.removeprefix('batch_')}_{line.number}"
    made = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()


async def store_part(context: Context, batch: Batch, results: Sequence[LineResult], claim: str) -> dict[str, Any]:
    """Store the results as the next part, and return the changes of the batch's record.

    `claim` makes the name unique, so that a process that lost its claim overwrites no part of another one.
    """

    async def content() -> AsyncIterator[bytes]:
        yield b"".join((DONE if each.is_done else FAILED) + each.text + b"\n" for each in results)

    last = results[-1].line
    name = f"{batch.tenant}/{batch.id}.{batch.next_line}.{claim}"
    await file_store(context).write(name, content())
    is_failed = [not each.is_done and not each.is_given_up for each in results]
    return {
        "completed": batch.completed + sum(each.is_done for each in results),
        "failed": batch.failed + sum(is_failed),
        "input_tokens": batch.input_tokens + sum(each.input_tokens for each in results),
        "output_tokens": batch.output_tokens + sum(each.output_tokens for each in results),
        "next_line": last.number + 1,
        "next_byte": last.end,
        "parts": (*batch.parts, name),
    }


async def put_together(context: Context, batch: Batch) -> dict[str, Any]:
    """Write the output and the error file, each unless it is empty, and return the changes of the batch's record."""
    output = await _file(context, batch, "output", DONE)
    return {"output_file_id": output, "error_file_id": await _file(context, batch, "error", FAILED)}


async def delete_parts(context: Context, names: Sequence[str]) -> None:
    for name in names:
        await file_store(context).delete(name)


async def _file(context: Context, batch: Batch, kind: str, mark: bytes) -> str:
    record: FileRecord = new_record(context, batch.tenant, f"{batch.id}_{kind}.jsonl", OUTPUT)
    size = await file_store(context).write(record.blob, _marked_lines(context, batch.parts, mark))
    if not size:
        await file_store(context).delete(record.blob)
        return ""
    await context.store.put_file(replace(record, size_bytes=size))
    return record.id


async def _marked_lines(context: Context, names: Sequence[str], mark: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the lines of all parts that begin with `mark`, without it."""
    for name in names:
        content = b"".join([each async for each in file_store(context).read(name)])
        chosen = [line[1:] for line in content.split(b"\n") if line[:1] == mark]
        if chosen:
            yield b"\n".join(chosen) + b"\n"
