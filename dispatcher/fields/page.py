"""Writes the documentation page of the table, docs/fields.md.

    python -m dispatcher.fields.page > docs/fields.md

A test compares the page with this text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dispatcher.fields import limits
from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.reading import DROPPED_MAX
from dispatcher.fields.table import formats, messages, response_items, responses, sampling, tools
from dispatcher.fields.tables import ALL, CHAT_TABLE

PARTS: tuple[FieldTable, ...] = (
    messages.INSTRUCTIONS,
    messages.USER,
    messages.ASSISTANT,
    messages.TOOL_RESULT,
    messages.TEXT_PART,
    messages.IMAGE_PART,
    messages.IMAGE_URL,
    tools.TOOL,
    tools.FUNCTION,
    tools.NAMED_TOOL,
    tools.NAMED,
    tools.TOOL_CALL,
    tools.CALLED,
    formats.JSON_SCHEMA_FORMAT,
    formats.JSON_SCHEMA,
    formats.STRUCTURAL_TAG,
    formats.STRUCTURED_OUTPUTS,
    sampling.STREAM_OPTIONS,
    sampling.REPETITION_DETECTION,
    responses.STREAM_OPTIONS,
    responses.REASONING_OPTIONS,
    responses.TEXT_OPTIONS,
    *response_items.OBJECTS,
)
"""The objects inside requests that have tables of their own."""
ROLES: Mapping[str, str] = {
    role: form.refused or f"*{form.table.title}*, below" for role, form in messages.MESSAGE.forms.items()
}

_HEAD = f"""# The fields of a request

This page is generated from the table in `dispatcher/fields/` (`python -m dispatcher.fields.page > docs/fields.md`). The
gate parses requests by the same table.

The table has every field of the chat, completion, responses and embeddings requests of OpenAI's API (the types of the
`openai` package) and of the pinned vLLM. A test fails if a new version of either adds a field. Each field has a class:

| class | what the gate does |
| --- | --- |
| ours | headgate sets the field. A request that has it is refused. |
| read | The gate uses it. |
| label | Any value is accepted and dropped, because it does not change the answer. |
| passed | Checked, and passed to the engine unchanged. |
| bounded | Passed too, within a limit, because its size decides what it costs. |
| refused | Refused, except at its neutral values. |

- **Null** is accepted for every field that is not required, and means "not sent". A field at a **neutral** value is
  dropped: the answer is the same without it. A *usual* value (in italics) is OpenAI's default, and a model's own
  configuration may have another one. It is passed to workers that have the capability, and dropped for others.
- **Needs**: the capability that all workers of the model register (`GET /v1/models` shows them). A request with another
  field is refused by the field's name, before it waits.
- An **unknown** field is refused by its name. With `HEADGATE_UNKNOWN_FIELDS=drop` (for `headgate serve`:
  `unknown_fields: drop` in the file of `--tenants`) the gate drops unknown fields of HTTP requests, at most
  {DROPPED_MAX} in one request, and names them in the response header `x-headgate-dropped-fields`. `lambda.invoke`
  always refuses them.
- A field of `/v1/chat/completions` is accepted at its neutral values by `/v1/completions`, and vice versa.
- Every refusal is a 400 (a 413 if the body is too large) with OpenAI's error object. `param` is the place of the field,
  such as `messages.2.content`. An error never repeats a value, and no value is logged.

Contradictory fields are refused: `max_tokens` and `max_completion_tokens` that differ; `min_tokens` above them;
`tool_choice` without `tools`, or with the name of no tool; two tools with one name; `top_logprobs` without `logprobs`;
`response_format` with `structured_outputs`. `n` times `max_tokens` is at most the tenant's limit (`max_tokens_max`).
"""

_LIMITS = """## Limits

The limits of the tables above. The name is what is counted: `parts` in one message, `inputs` in one embeddings request,
`depth` in levels and `nodes` in values of one JSON schema, `all nodes` and `all pattern chars` in all schemas of one
request, `pixels` in all its images. `choices` is the limit of `n`. `token id`, `seed` and `integer` are the largest
values; `integer` is that of whole numbers in JSON that the gate does not read.
"""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for table in ALL:
        yield from _section(table.title, table.fields, 2)
        if table is CHAT_TABLE:
            yield "The roles of a message:\n"
            yield from (f"- `{role}`: {fields}" for role, fields in ROLES.items())
            yield ""
    yield "## Objects in a request\n"
    for table in PARTS:
        yield from _section(table.title, table.fields, 3)
    yield _LIMITS
    yield "| limit | value |\n| --- | --- |"
    for name, value in vars(limits).items():
        if name.endswith("_MAX"):
            yield f"| {name.removesuffix('_MAX').lower().replace('_', ' ')} | {value:,} |"


def _section(title: str, fields: Mapping[str, Field], level: int) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    yield "| field | class | accepted values | neutral | needs | |\n| --- | --- | --- | --- | --- | --- |"
    for name, field in sorted(fields.items(), key=lambda pair: (list(Kind).index(pair[1].kind), pair[0])):
        yield f"| `{name}`{' (required)' if field.required else ''} | {field.kind} | {_cells(field)} |"
    yield ""


def _cells(field: Field) -> str:
    is_checked = field.kind in (Kind.READ, Kind.PASSED, Kind.BOUNDED)
    values = [*map(_code, field.neutral), *(f"*{_code(each)}*" for each in field.usual)]
    cells = (
        field.shape.text() if is_checked else "",
        ", ".join(values),
        " or ".join(f"`{each}`" for each in field.capability),
        field.note,
    )
    return " | ".join(cell.replace("|", "\\|") for cell in cells)


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    sys.stdout.write(page())
