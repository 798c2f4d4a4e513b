"""Fields about the form of an answer: text, JSON, a grammar. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.limits import ALTERNATIVES_MAX, DESCRIPTION_CHARS_MAX, GRAMMAR_CHARS_MAX
from dispatcher.fields.shapes.containers import Form, Items, Record, Tagged
from dispatcher.fields.shapes.patterns import PatternShape
from dispatcher.fields.shapes.scalars import Flag, Text
from dispatcher.fields.shapes.schemas import Schema
from dispatcher.fields.table.ours import refused
from dispatcher.fields.table.sampling import VLLM
from dispatcher.fields.table.tools import NAME, NO_FIELDS
from dispatcher.model.fleet import Capability

STRUCTURED_NEED = (Capability.STRUCTURED,)

JSON_SCHEMA = FieldTable(
    "json_schema",
    {
        "name": NAME,
        "description": Field(Kind.BOUNDED, Text(DESCRIPTION_CHARS_MAX)),
        "schema": Field(Kind.BOUNDED, Schema(), required=True),
        "strict": Field(Kind.PASSED, Flag()),
    },
)
JSON_SCHEMA_FORMAT = FieldTable(
    "response_format json_schema", {"json_schema": Field(Kind.PASSED, Record(JSON_SCHEMA), required=True)}
)
STRUCTURAL_TAG = FieldTable(
    "response_format structural_tag",
    {
        "format": Field(Kind.BOUNDED, Schema()),
        "structures": Field(Kind.BOUNDED, Items(Schema(), ALTERNATIVES_MAX)),
        "triggers": Field(Kind.BOUNDED, Items(Text(200, 1), ALTERNATIVES_MAX)),
    },
)
STRUCTURED_OUTPUTS = FieldTable(
    "structured_outputs",
    {
        "json": Field(Kind.BOUNDED, Schema()),
        "regex": Field(Kind.BOUNDED, PatternShape()),
        "choice": Field(Kind.BOUNDED, Items(Text(1_000, 1), ALTERNATIVES_MAX, 1)),
        "grammar": Field(Kind.BOUNDED, Text(GRAMMAR_CHARS_MAX, 1)),
        "json_object": Field(Kind.PASSED, Flag()),
        "disable_any_whitespace": Field(Kind.PASSED, Flag(), neutral=(False,)),
        "disable_additional_properties": Field(Kind.PASSED, Flag(), neutral=(False,)),
        "whitespace_pattern": Field(Kind.BOUNDED, PatternShape()),
        "structural_tag": refused("Use `response_format` with the type `structural_tag`."),
        "_backend": refused("The operator configures the engine."),
        "_backend_was_auto": refused("The operator configures the engine."),
    },
)

FORMATS: Mapping[str, Field] = {
    "response_format": Field(
        Kind.BOUNDED,
        Tagged(
            "type",
            {
                "text": Form(NO_FIELDS),
                "json_object": Form(NO_FIELDS, STRUCTURED_NEED),
                "json_schema": Form(JSON_SCHEMA_FORMAT, STRUCTURED_NEED),
                "structural_tag": Form(STRUCTURAL_TAG, VLLM),
            },
        ),
        neutral=({"type": "text"},),
    ),
    "structured_outputs": Field(Kind.BOUNDED, Record(STRUCTURED_OUTPUTS), neutral=({},), capability=VLLM),
}
