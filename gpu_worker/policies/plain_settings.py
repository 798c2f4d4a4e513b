"""Settings from plain values, as JSON has them, where pydantic may not be imported: inside an engine's process.

As strict as dispatcher/settings/strict.py, and with its words: "no" is not False and "7" is not 7, and an unknown name
is an error that names the nearest known one. Types and bounds stand beside the fields of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dispatcher.policies.bounds import OneOf

T = TypeVar("T")
_SHOWN_CHARS_MAX = 40


def read_settings(kind: type[T], values: object, place: str) -> T:
    """Make a dataclass of settings. `place`: the name of the whole, for the sentence.

    Raises ValueError, with one sentence for a person, for the first name or value that is wrong.
    """
    hints = get_type_hints(kind, include_extras=True)
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise _mistake(place, f"a mapping of {', '.join(known)}", values)
    for name in values:
        if name not in known:
            raise ValueError(f"{place}: {describe_unknown(name, known)}")
    read = {name: _read(hints[name], value, f"{place}.{name}") for name, value in values.items()}
    try:
        return kind(**read)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def describe_unknown(name: object, known: Sequence[str]) -> str:
    """Return what is wrong with an unknown name."""
    close = get_close_matches(str(name), known, 1)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    return f"there is no setting {_show(name)}{guess}; there are {', '.join(known)}"


def _read(hint: Any, value: object, place: str) -> Any:
    """Return the value as the type of its field."""
    if hint is Any:
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        allowed = next((each.values for each in arguments[1:] if isinstance(each, OneOf)), None)
        return _read(arguments[0], value, place) if allowed is None else _choose(arguments[0], allowed, value, place)
    if origin in (Union, UnionType):
        (wanted,) = (each for each in arguments if each is not type(None))
        return None if value is None else _read(wanted, value, place)
    if origin is Literal:
        return _choose(str, arguments, value, place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _mistake(place, "a mapping", value)
        key_hint, value_hint = arguments
        return {_read(key_hint, key, place): _read(value_hint, each, f"{place}.{key}") for key, each in value.items()}
    if origin in (frozenset, tuple):
        if not isinstance(value, list | tuple | set | frozenset):
            raise _mistake(place, "a list", value)
        return origin(_read(arguments[0], each, place) for each in value)
    if is_dataclass(hint):
        return read_settings(hint, value, place)  # type: ignore[arg-type]
    return _read_scalar(hint, value, place)


def _read_scalar(kind: type, value: object, place: str) -> object:
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    if kind in (int, float) and isinstance(value, int if kind is int else int | float) and not isinstance(value, bool):
        return kind(value)
    raise _mistake(place, {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}[kind], value)


def _choose(kind: type, allowed: Sequence[Any], value: object, place: str) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise _mistake(place, f"one of {', '.join(map(str, allowed))}", value)
    return kind(value) if issubclass(kind, Enum) else value


def _mistake(place: str, wanted: str, value: object) -> ValueError:
    return ValueError(f"{place} should be {wanted}, not {_show(value)}")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
