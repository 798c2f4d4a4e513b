"""Reads headgate.yaml. An error names the place in the file, what was found, and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from dispatcher.model.errors import ConfigurationError as ConfigurationError
from headgate.deployment.model import NAME, Deployment
from headgate.workloads.described.document import read_document

FOUND_CHARS_MAX = 40
EXAMPLES = {
    "name": "headgate-staging, with at most 32 small letters, digits and hyphens",
    "region": "us-east-1",
    "zones": "us-east-1a",
    "zone": "us-east-1a",
    "certificate": "arn:aws:acm:us-east-1:123456789012:certificate/ID",
    "domain": "llm.example.com",
    "allowed_invokers": "arn:aws:iam::123456789012:role/NAME",
    "alarm_address": "operators@example.com",
    "pools": "chat, with at most 16 small letters, digits and hyphens",
    "id": "cr-0123456789abcdef0",
    "model": "s3://my-models/llama-3-8b/",
    "servers.model": "llama-3-8b",
    "api_key_secret": "arn:aws:secretsmanager:us-east-1:123456789012:secret:NAME",
}
"""What stands in an error in place of a pattern, by the field."""
WORDS = (
    ("Input should", "should"),
    ("String should", "should"),
    ("Tuple should", "should"),
    (" after validation", ""),
    ("be a valid tuple", "be a list"),
)
"""Pydantic's words, and those of YAML."""


def load(path: Path, name: str | None = None, region: str | None = None) -> Deployment:
    """Read and validate the file. `name` takes the place of the name in the file. `region`: of the environment, for a
    file that names none. Raises ConfigurationError."""
    document = read_document(path)
    try:
        deployment = Deployment.model_validate(document.value, context={"region": region})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "missing":
            raise document.wrong(first["loc"][:-1], "is missing", key=str(first["loc"][-1])) from None
        raise document.wrong(first["loc"], _what(first)) from None
    return deployment if name is None else _rename(deployment, name)


def _rename(deployment: Deployment, name: str) -> Deployment:
    """Return the deployment with another name. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(
            f"the stack cannot have the name {name[:FOUND_CHARS_MAX]!r}: use at most 32 lower-case letters, digits and "
            "hyphens, with a letter first"
        )
    return deployment.model_copy(update={"name": name})


def _what(error: ErrorDetails) -> str:
    """Return what is wrong, in words."""
    fields = _fields(_shape_at(error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"is not known here; there are {fields}"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"should be a mapping of {fields}"
    found: Any = error["input"]
    shown = "" if isinstance(found, dict | tuple | BaseModel) else f", not {str(found)[:FOUND_CHARS_MAX]!r}"
    example = _example(error["loc"]) if error["type"] == "string_pattern_mismatch" else None
    if example is not None:
        return f"should look like {example}{shown}"
    text = error["msg"]
    for old, new in WORDS:
        text = text.replace(old, new, 1)
    return text + shown


def _example(loc: tuple[int | str, ...]) -> str | None:
    """Return an example of the field at `loc`; that of a pool's name for a name in `pools`."""
    names = [str(key) for key in loc if isinstance(key, str) and key not in ("[key]", "count", "names")]
    if loc and loc[-1] == "[key]":
        return EXAMPLES.get(names[-2]) if len(names) > 1 else None
    own = names[-1] if names else ""
    return EXAMPLES.get(f"servers.{own}" if "servers" in names else own) or EXAMPLES.get(own)


def _shape_at(loc: tuple[int | str, ...]) -> Any:
    """Return the model, or the mapping of names to models, that contains the value at `loc` or that it should be."""
    shape: Any = Deployment
    for key in loc:
        shape = _shape_below(shape, str(key)) or shape
    return shape


def _shape_below(shape: Any, key: str) -> Any:
    """Return the model or mapping to which `key` leads in a shape; None for a plain value."""
    if get_origin(shape) is dict:
        value = get_args(shape)[1]
        return value if _is_shape(value) else None
    field = shape.model_fields.get(key)
    annotations = (field.annotation, *get_args(field.annotation)) if field else ()
    return next((_unwrap_root(each) for each in annotations if _is_shape(each)), None)


def _is_shape(annotation: Any) -> bool:
    return get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel))


def _unwrap_root(shape: Any) -> Any:
    """Return the mapping of a model that is nothing but a mapping."""
    is_root = isinstance(shape, type) and issubclass(shape, RootModel)
    return shape.model_fields["root"].annotation if is_root else shape


def _fields(shape: Any) -> str:
    """Return the names of the fields, a model's own ones first."""
    if get_origin(shape) is dict:
        return "names to values"
    return ", ".join(sorted(shape.model_fields, key=lambda name: name not in shape.__annotations__))
