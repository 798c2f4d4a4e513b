"""The results of a batch's lines: stored in parts while it runs, and put together into its output files at the end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dispatcher.model.batches import OUTPUT, Batch, FileRecord
from dispatcher.model.errors import AnsweredError
from dispatcher.operations.batches.lines import Line
from dispatcher.operations.context import Context
from dispatcher.operations.files import file_store, new_record

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
