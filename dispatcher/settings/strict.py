"""The strict base of what comes from outside, and the one sentence that says what is wrong with it.

A file, a JSON text, a payload, a variable and a command line become pydantic models, or dataclasses of the policies
with their bounds (policies/bounds.py). Strict: "no" is not False and "7" is not 7, there is no infinity, and an unknown
key is an error that names the nearest known key. The environment alone is read as text (settings/config.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, RootModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from dispatcher.model.errors import ConfigurationError

T = TypeVar("T")
Loc = tuple[str | int, ...]
"""The way from the outermost mapping to a value: keys of mappings and numbers of items."""

_FOUND_CHARS_MAX = 40
_SEQUENCES = (tuple, list, frozenset)
_NO_MAPPING = ("model_type", "model_attributes_type", "dict_type", "mapping_type", "dataclass_type")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_WORDS = (
    (r"^Value error, ", ""),
    (r"^(Input|String|Tuple|List|Dictionary|Frozenset) should", "should"),
    (r" after validation", ""),
    (r"be a valid (tuple|list)", "be a list"),
    (r"be a valid (dictionary|mapping)", "be a mapping"),
)
"""Pydantic's words, and those of YAML and JSON."""


class Strict(BaseModel):
    """The base of all models of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Mistake(NamedTuple):
    """What is wrong. `key`: the key of the mapping at `loc`, which can be missing in it; None: the value itself."""

    loc: Loc
    key: str | None
    what: str


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the validator of a type. It is made once."""
    key: Any = kind  # mypy takes no class of an unknown type for hashable
    return _make_adapter(key)


@cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def at_key(key: str, what: str) -> PydanticCustomError:
    """Return an error about one key of the mapping that is being validated."""
    return PydanticCustomError("at_key", "{what}", {"key": key, "what": what})


def parse(kind: type[T], value: Any, whole: str) -> T:
    """Validate plain values. Raises ConfigurationError, which names the field and does not repeat its value.

    `whole`: the name of the value itself.
    """
    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        raise ConfigurationError(explain(error, kind, lambda loc: ".".join(map(str, loc)) or whole)) from None


def explain(error: ValidationError, kind: Any, name: Callable[[Loc], str]) -> str:
    """Return the first error in a sentence that does not repeat the value. `name` returns the name of a place."""
    mistake = find_mistakes(error, kind, shows_values=False)[0]
    loc = mistake.loc if mistake.key is None else (*mistake.loc, mistake.key)
    place = name(loc)
    return f"{place}: {mistake.what}" if place else mistake.what


def find_mistakes(error: ValidationError, kind: Any, *, shows_values: bool = True) -> list[Mistake]:
    """Return what is wrong, in pydantic's order; at least one."""
    return [_find_mistake(each, kind, shows_values) for each in error.errors(include_url=False)]


def _find_mistake(error: ErrorDetails, kind: Any, shows_values: bool) -> Mistake:
    loc: Loc = tuple(error["loc"])
    context = error.get("ctx", {})
    match error["type"]:
        case "at_key":
            return Mistake(loc, context["key"], context["what"])
        case "missing":
            return Mistake(loc[:-1], str(loc[-1]), "is missing")
        case "union_tag_not_found":
            return Mistake(loc, context["discriminator"].strip("'"), "is missing")
        case "union_tag_invalid":
            found = f", not {str(context['tag'])[:_FOUND_CHARS_MAX]!r}" if shows_values else ""
            what = f"should be one of {context['expected_tags']}{found}"
            return Mistake(loc, context["discriminator"].strip("'"), what)
        case unknown if unknown in _UNKNOWN:
            return Mistake(loc, None, _describe_unknown_key(str(loc[-1]), _known_keys(kind, loc[:-1])))
        case other if other in _NO_MAPPING:
            what = f"should be a mapping {_describe_mapping(kind, loc)}"
        case _:
            what = error["msg"]
            for old, new in _WORDS:
                what = re.sub(old, new, what)
    return Mistake(loc, None, what + _describe_value(what, error["input"]) if shows_values else what)


def _describe_value(what: str, value: Any) -> str:
    """Return the end of a sentence that names the value instead of which another is expected."""
    if not what.startswith("should") or ", not " in what or not isinstance(value, str | int | float):
        return ""
    return f", not {str(value)[:_FOUND_CHARS_MAX]!r}"


def _describe_unknown_key(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, 1)
    return f"is not known here{f' (did you mean {close[0]!r}?)' if close else ''}; there are {', '.join(known)}"


def _describe_mapping(kind: Any, loc: Loc) -> str:
    shapes = _shapes_at(kind, loc)
    if len(shapes) > 1:
        return f"with {' or '.join(repr(key) for key, each in _types_of(shapes[0]).items() if _is_tag(each))}"
    return f"of {', '.join(_known_keys(kind, loc)) or 'names to values'}"


def _known_keys(kind: Any, loc: Loc) -> list[str]:
    """Return the keys of the mapping at `loc`, a model's own ones first; none if every key is right."""
    return list(dict.fromkeys(key for shape in _shapes_at(kind, loc) for key in _types_of(shape)))


def _shapes_at(kind: Any, loc: Loc) -> list[Any]:
    """Return the models, dataclasses and collections that the value at `loc` may be, or in which it is."""
    shapes = list(_shapes(kind))
    for key in loc:
        shapes = [below for shape in shapes for below in _shapes_below(shape, key)] or shapes
    return shapes


def _shapes_below(shape: Any, key: str | int) -> Iterator[Any]:
    """Yield the shapes to which a key leads. The `kind` of one of several models leads to that model itself."""
    origin = get_origin(shape)
    if origin in _SEQUENCES:
        yield from _shapes(get_args(shape)[0]) if isinstance(key, int) else ()
    elif origin is not None:
        yield from _shapes(get_args(shape)[1])
    elif key in (types := _types_of(shape)):
        yield from _shapes(types[str(key)])
    elif any(_is_tag(each) and key in get_args(each) for each in types.values()):
        yield shape


def _is_tag(annotation: Any) -> bool:
    """Return whether a field has one value, which tells its model from the others of a union."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def _shapes(annotation: Any) -> Iterator[Any]:
    """Yield the models, dataclasses and collections of a type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _shapes(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _shapes(each)
    elif origin in _SEQUENCES or origin in (dict, Mapping):
        yield annotation
    elif isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _shapes(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        yield annotation


def _types_of(shape: Any) -> dict[str, Any]:
    """Return the types of the fields of a model or dataclass; none of a collection."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        own = sorted(shape.model_fields, key=lambda name: name not in shape.__annotations__)
        return {name: shape.model_fields[name].annotation for name in own}
    if not (is_dataclass(shape) and isinstance(shape, type)):
        return {}
    hints = get_type_hints(shape, include_extras=True)
    return {field.name: hints[field.name] for field in fields(shape)}
