"""Reads headgate.yaml. An error names the place in the file, what was found, and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from dispatcher.model.errors import ConfigurationError as ConfigurationError
from dispatcher.sections import SloClassSection
from headgate.deployment.model import NAME, Deployment
from headgate.workloads.described.document import read_document

FOUND_CHARS_MAX = 40


def load(path: Path, name: str | None = None) -> Deployment:
    """Read and validate the file. `name` takes the place of the name in the file. Raises ConfigurationError."""
    document = read_document(path)
    try:
        deployment = Deployment.model_validate(document.value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "missing":
            raise document.wrong(first["loc"][:-1], "is missing", key=str(first["loc"][-1])) from None
        raise document.wrong(first["loc"], _what(first)) from None
    return deployment if name is None else _named(deployment, name)


def _named(deployment: Deployment, name: str) -> Deployment:
    """Return the deployment with another name. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(
            f"the stack cannot have the name {name[:FOUND_CHARS_MAX]!r}: use at most 32 lower-case letters, digits and "
            "hyphens, with a letter first"
        )
    return deployment.model_copy(update={"name": name})


def _what(error: ErrorDetails) -> str:
    """Return what is wrong, in words."""
    model = _model_at(error["loc"])
    fields = ", ".join(model.model_fields) if not issubclass(model, RootModel) else "names to mappings"
    if error["type"] == "extra_forbidden":
        return f"is not known here; there are {fields}"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"should be a mapping of {fields}"
    found: Any = error["input"]
    shown = "" if isinstance(found, dict | tuple | BaseModel) else f", not {str(found)[:FOUND_CHARS_MAX]!r}"
    return error["msg"].replace("Input should", "should", 1).replace("String should", "should", 1) + shown


def _model_at(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the model that contains the value at `loc`, or that the value should be."""
    model: type[BaseModel] = Deployment
    for key in loc:
        if issubclass(model, RootModel):
            model = SloClassSection
            continue
        field = model.model_fields.get(str(key))
        annotations = (field.annotation, *get_args(field.annotation)) if field else ()
        below = [each for each in annotations if isinstance(each, type) and issubclass(each, BaseModel)]
        model = below[0] if below else model
    return model
