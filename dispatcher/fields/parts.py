"""The objects inside requests that have tables of their own, for the page and for the tests. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import FieldTable
from dispatcher.fields.table import formats, messages, response_items, responses, sampling, tools

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

ROLES: Mapping[str, str] = {
    role: form.refused or f"*{form.table.title}*, below" for role, form in messages.MESSAGE.forms.items()
}
