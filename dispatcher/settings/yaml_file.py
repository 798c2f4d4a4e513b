"""The one reader of YAML: plain values with their places, so that every error names file, line, column and key.

Settings need mappings, lists, strings, numbers, true, false and null; nothing else is read. Scalars follow the core
schema of YAML 1.2 and not YAML 1.1, where `no` is false, 010 is eight and 1:30 is ninety. Aliases are followed, up to
_NODES_MAX values in all. Tags, merge keys and duplicate keys are refused.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from dispatcher.model.errors import ConfigurationError
from dispatcher.settings.strict import Loc, Mistake, adapter, find_mistakes

BYTES_MAX = 1_048_576
_NODES_MAX = 100_000
_DEPTH_MAX = 20
_NUMBER_CHARS_MAX = 300

T = TypeVar("T")
Place = tuple[int, int]
"""Line and column, both from 1."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False, ".nan": math.nan}
_WORDS |= {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf}
_TAG = "tag:yaml.org,2002:"
_IMPLICIT = {_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")}


@dataclass(frozen=True, slots=True)
class Document:
    """`value` has tuples for lists. `places`: of the values, by their path; `keys`: of the keys that lead to them.

    `name`: the file's path, or what stands in an error in its place.
    """

    name: str
    value: Any
    places: dict[Loc, Place]
    keys: dict[Loc, Place]

    def parse(self, kind: type[T], context: Any = None) -> T:
        """Validate the value. Raises ConfigurationError for the mistake that stands first in the file."""
        return self.parse_as(kind, self.value, context=context)

    def parse_as(self, kind: type[T], value: Any, *, context: Any = None, drop: Loc = ()) -> T:
        """Validate a value that was made of the document's. `drop`: the keys before all of it that the file lacks.

        Raises ConfigurationError for the mistake that stands first in the file.
        """
        try:
            return adapter(kind).validate_python(value, context=context)
        except ValidationError as error:
            found = [
                each._replace(loc=each.loc[len(drop) :] if each.loc[: len(drop)] == drop else each.loc)
                for each in find_mistakes(error, kind)
            ]
            first = min(_innermost(found), key=lambda each: self.place(each.loc, each.key))
            raise self.wrong(first.loc, first.what, first.key) from None

    def wrong(self, loc: Sequence[str | int], what: str, key: str | None = None) -> ConfigurationError:
        """Return an error about the value at `loc`, or about its key `key`, which can be missing in the file.

        Parts of `loc` that are not in the file are left out.
        """
        line, column = self.place(loc, key)
        named = self._known_loc(loc) if key is None else (*self._known_loc(loc), key)
        return ConfigurationError(
            f"{self.name}, line {line}, column {column}{f', key {_dotted_path(named)!r}' if named else ''}: {what}"
        )

    def place(self, loc: Sequence[str | int], key: str | None = None) -> Place:
        """Return the place of the key at `loc`, or of what should contain it if it is not in the file."""
        found = self._known_loc(loc)
        below = found if key is None else (*found, key)
        return self.keys.get(below) or self.keys.get(found) or self.places[found]

    def _known_loc(self, loc: Sequence[str | int]) -> Loc:
        found: Loc = ()
        for key in loc:
            found = (*found, key) if (*found, key) in self.places else found
        return found


def _innermost(found: Sequence[Mistake]) -> list[Mistake]:
    """Return the mistakes without those about a whole of which a part is wrong."""
    locs = [each.loc if each.key is None else (*each.loc, each.key) for each in found]
    return [
        each
        for each, loc in zip(found, locs, strict=True)
        if not any(len(other) > len(loc) == len(each.loc) and other[: len(loc)] == loc for other in locs)
    ]


def _dotted_path(loc: Loc) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key[:40]}" for key in loc).lstrip(".")


def read_document(path: Path, *, may_be_empty: bool = False) -> Document:
    """Read a YAML file. Raises ConfigurationError: one sentence with file, line and column.

    `may_be_empty`: an empty file is a mapping without keys.
    """
    return read_text(str(path), _text(path), may_be_empty=may_be_empty)


def read_text(name: str, text: str, *, may_be_empty: bool = False) -> Document:
    """Read YAML, or JSON, which is a part of YAML. `name` stands in errors.

    Raises ConfigurationError: one sentence with line and column.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{name}{place}: not YAML ({error.problem or error.context})") from None
    except yaml.reader.ReaderError as error:
        raise ConfigurationError(f"{name}: not YAML (the character {error.character!r} is not allowed)") from None
    except RecursionError:
        raise ConfigurationError(f"{name}: nested more than {_DEPTH_MAX} deep") from None
    if root is None and may_be_empty:
        return Document(name, {}, {(): (1, 1)}, {})
    if root is None:
        raise ConfigurationError(f"{name}: is empty")
    reading = _Reading(name)
    value = reading.value(root, ())
    return Document(name, value, reading.places, reading.keys)


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigurationError(f"{path}: is no regular file")
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or 'cannot be read'}") from None
    if len(content) > BYTES_MAX:
        raise ConfigurationError(f"{path}: more than {BYTES_MAX} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}, line {line}: not UTF-8 text") from None


class _Reading:
    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes = 0
        self.places: dict[Loc, Place] = {}
        self.keys: dict[Loc, Place] = {}

    def value(self, node: yaml.Node, loc: Loc) -> Any:
        self._nodes += 1
        if self._nodes > _NODES_MAX:
            raise self._wrong(node, f"more than {_NODES_MAX} values, counting what aliases repeat")
        if len(loc) > _DEPTH_MAX:
            raise self._wrong(node, f"nested more than {_DEPTH_MAX} deep")
        self.places[loc] = _place(node)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return tuple(self.value(one, (*loc, number)) for number, one in enumerate(node.value))
        if isinstance(node, yaml.ScalarNode) and node.tag in _IMPLICIT:
            return self._scalar(node)
        raise self._wrong(node, f"the tag {str(node.tag)[:40]!r} is not supported")

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._wrong(key_node, "a key should be a word")
            key = str(key_node.value)
            if key in values:
                raise self._wrong(key_node, f"the key {key[:40]!r} appears twice")
            if key_node.tag == _TAG + "merge":
                raise self._wrong(key_node, "merge keys (<<) are not supported; an alias can replace a whole value")
            self.keys[*loc, key] = _place(key_node)
            values[key] = self.value(value_node, (*loc, key))
        return values

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if node.style is not None:
            return text
        if text.lower() in _WORDS and text in (text.lower(), text.capitalize(), text.upper()):
            return _WORDS[text.lower()]
        if not _FLOAT.fullmatch(text):
            return text
        if len(text) > _NUMBER_CHARS_MAX:
            raise self._wrong(node, f"a number of more than {_NUMBER_CHARS_MAX} characters")
        return int(text) if _INTEGER.fullmatch(text) else float(text)

    def _wrong(self, node: yaml.Node, what: str) -> ConfigurationError:
        line, column = _place(node)
        return ConfigurationError(f"{self._name}, line {line}, column {column}: {what}")


def _place(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1
