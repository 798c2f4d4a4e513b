"""Write the tables of the fields in Markdown: `python -m dispatcher.fields.page` prints them.

`make docs` puts them into the page docs/fields.md, which explains their columns. They are in the site and not in git.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dispatcher.fields import chat_objects, common, limits, response_objects, tables
from dispatcher.fields.kinds import Field, FieldTable, Kind

PARTS: tuple[FieldTable, ...] = (
    chat_objects.INSTRUCTIONS,
    chat_objects.USER,
    chat_objects.ASSISTANT,
    chat_objects.TOOL_RESULT,
    chat_objects.TEXT_PART,
    chat_objects.IMAGE_PART,
    chat_objects.IMAGE_URL,
    chat_objects.TOOL,
    chat_objects.FUNCTION,
    chat_objects.NAMED_TOOL,
    chat_objects.NAMED,
    chat_objects.TOOL_CALL,
    chat_objects.CALLED,
    chat_objects.JSON_SCHEMA_FORMAT,
    chat_objects.JSON_SCHEMA,
    chat_objects.STRUCTURAL_TAG,
    chat_objects.STRUCTURED_OUTPUTS,
    common.STREAM_OPTIONS,
    common.REPETITION_DETECTION,
    tables.RESPONSE_STREAM_OPTIONS,
    tables.REASONING_OPTIONS,
    tables.TEXT_OPTIONS,
    *response_objects.OBJECTS,
)
"""The objects inside requests that have tables of their own."""
_ROLES: Mapping[str, str] = {
    role: form.refused or f"*{form.table.title}*, below" for role, form in chat_objects.MESSAGE.forms.items()
}

_LIMITS = """## Limits

The limits of the tables above. The name is what is counted: `parts` in one message, `inputs` in one embeddings request,
`depth` in levels and `nodes` in values of one JSON schema, `all nodes` and `all pattern chars` in all schemas of one
request, `pixels` in all its images. `choices` is the limit of `n`. `token id`, `seed` and `integer` are the largest
values; `integer` is that of whole numbers in JSON that the gate does not read.
"""


def write_tables() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for table in tables.ALL:
        yield from _section(table.title, table.fields, 2)
        if table is tables.CHAT_TABLE:
            yield "The roles of a message:\n"
            yield from (f"- `{role}`: {fields}" for role, fields in _ROLES.items())
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
    sys.stdout.write(write_tables())
