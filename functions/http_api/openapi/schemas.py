"""JSON schemas of requests, from the table of fields (dispatcher/fields). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dispatcher.fields.images import ImageUrl
from dispatcher.fields.kinds import Field, Kind, Shape
from dispatcher.fields.schemas import Free, PatternShape, Schema
from dispatcher.fields.shapes import (
    ByFirst,
    Either,
    Entries,
    Flag,
    Form,
    Items,
    Number,
    Record,
    Tagged,
    Text,
    TokenIds,
    Whole,
    Word,
)

Json = dict[str, Any]
ACCEPTED = (Kind.READ, Kind.PASSED, Kind.BOUNDED, Kind.LABEL)
"""The kinds of the fields that a client may send. The others are refused, and are not part of the document."""


def object_of(fields: Mapping[str, Field]) -> Json:
    """Return the schema of an object with these fields. It has no other fields, because the gate refuses them."""
    accepted = {name: each for name, each in sorted(fields.items()) if each.kind in ACCEPTED}
    return {
        "type": "object",
        "properties": {name: _field(each) for name, each in accepted.items()},
        "required": [name for name, each in accepted.items() if each.required],
        "additionalProperties": False,
    }


def opened(schema: Any) -> Any:
    """Return the schema without the rule that objects have no other fields."""
    if isinstance(schema, list):
        return [opened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if (name, each) != ("additionalProperties", False)}
    return {name: opened(each) for name, each in kept.items()}


def _field(field: Field) -> Json:
    """Return the schema of a field. A field that is not required may be null."""
    schema = schema_of(field.shape)
    if not field.required and schema:
        schema = {"anyOf": [schema, {"type": "null"}]}
    needs = f"Needs the capability {' or '.join(field.capability)}." if field.capability else ""
    text = " ".join(filter(None, (field.note, needs)))
    return {**schema, **({"description": text} if text else {})}


def schema_of(shape: Shape) -> Json:
    """Return the schema of a shape; {} for any value."""
    match shape:
        case Flag():
            return {"type": "boolean"}
        case Whole():
            return {"type": "integer", **_bounds(minimum=shape.low, maximum=shape.high)}
        case Number():
            lowest = "exclusiveMinimum" if shape.above else "minimum"
            return {"type": "number", lowest: shape.low, "maximum": shape.high}
        case Text():
            pattern = {"pattern": f"^(?:{shape.pattern})$"} if shape.pattern else {}
            return {"type": "string", **_bounds(minLength=shape.shortest or None, maxLength=shape.longest), **pattern}
        case Word():
            return {"type": "string", "enum": list(shape.words)}
        case PatternShape():
            return {"type": "string", "description": shape.text()}
        case ImageUrl():
            return {"type": "string", "pattern": "^data:image/", "description": shape.text()}
        case TokenIds():
            return _list({"type": "integer", "minimum": 0}, shape.fewest, shape.most)
        case Items():
            return _list(schema_of(shape.of), shape.fewest, shape.most)
        case Schema() | Free():
            return {"type": "object", "description": shape.text()}
        case Entries():
            keys = {"propertyNames": schema_of(shape.key), "maxProperties": shape.most}
            return {"type": "object", "additionalProperties": schema_of(shape.of), **keys}
        case Record():
            return object_of(shape.table.fields)
        case Tagged():
            return _any_of(_form(shape, name, form) for name, form in shape.forms.items() if not form.refused)
        case Either():
            return _any_of(map(schema_of, shape.shapes.values()))
        case ByFirst():
            return _any_of(schema_of(each) for each, _ in shape.shapes.values())
    return {}


def _form(shape: Tagged, name: str, form: Form) -> Json:
    schema = object_of(form.table.fields)
    tag = [] if name == shape.usual else [shape.tag]
    properties = {shape.tag: {"type": "string", "const": name}, **schema["properties"]}
    return {**schema, "properties": properties, "required": [*tag, *schema["required"]]}


def _list(items: Json, fewest: int, most: int) -> Json:
    return {"type": "array", "items": items, **_bounds(minItems=fewest or None, maxItems=most)}


def _any_of(schemas: Iterable[Json]) -> Json:
    each = list(schemas)
    return each[0] if len(each) == 1 else {"anyOf": each}


def _bounds(**values: int | None) -> Json:
    return {name: value for name, value in values.items() if value is not None}
