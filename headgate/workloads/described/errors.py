"""The errors that pydantic finds in a YAML file, each as one sentence that names file, line, column and key."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headgate.workloads.arrivals import WorkloadError
from headgate.workloads.described.document import Document, Loc, Place


def first_error(document: Document, error: ValidationError) -> WorkloadError:
    """Return the error that stands first in the file."""
    return min((_wrong(document, one) for one in error.errors()), key=lambda found: found[0])[1]


def _wrong(document: Document, error: ErrorDetails) -> tuple[Place, WorkloadError]:
    """Return the place of one of pydantic's errors, and its sentence."""
    loc: Loc = tuple(error["loc"])
    what = error["msg"].replace("Input should", "should").replace("valid dictionary", "mapping")
    context = error.get("ctx", {})
    key: str | None = None
    match error["type"]:
        case "at_key":
            key = context["key"]
        case "missing":
            loc, key, what = loc[:-1], str(loc[-1]), "is missing"
        case "union_tag_not_found":
            key, what = "kind", "is missing"
        case "union_tag_invalid":
            key, what = "kind", f"{str(context['tag'])[:40]!r} should be one of {context['expected_tags']}"
        case "model_attributes_type":
            what = "should be a mapping with a 'kind'"
        case _ if isinstance(error["input"], str | int | float):
            what = f"{str(error['input'])[:40]!r} {what}"
    return document.place(loc, key), document.wrong(loc, what, key)
