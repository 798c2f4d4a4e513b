"""A schema document: its references, and the work that one instance may cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from gpu_worker.engines.minimal_json.pattern_parser import parse_pattern
from gpu_worker.engines.minimal_json.patterns import PatternPart

WORK_MAX = 20_000
"""Visits of schemas, places of a text under a pattern, and compared values, for one instance."""


class Unsatisfiable(Exception):
    """No small instance of this schema was found. The message says why."""


class WorkExceeded(Unsatisfiable):
    """The search for an instance takes too much work."""

    def __init__(self) -> None:
        super().__init__("it needs too large a value, or has too many alternatives")


@dataclass
class Work:
    left: int = WORK_MAX

    def spend(self, units: int = 1) -> None:
        """Raises WorkExceeded."""
        self.left -= units
        if self.left < 0:
            raise WorkExceeded


@dataclass
class SchemaDocument:
    """`root`: the whole schema, in which `$ref` finds its target."""

    root: Any
    work: Work = field(default_factory=Work)
    _patterns: dict[str, PatternPart] = field(default_factory=dict)

    def pattern(self, text: Any) -> PatternPart:
        """Raises Unsatisfiable for a pattern that is not understood."""
        if not isinstance(text, str):
            raise Unsatisfiable("a pattern must be a string")
        if text not in self._patterns:
            self.work.spend(1 + len(text) // 8)
            try:
                self._patterns[text] = parse_pattern(text)
            except ValueError as error:
                raise Unsatisfiable(f"the pattern {text[:80]!r} is not supported: {error}") from None
        return self._patterns[text]

    def matches(self, pattern: Any, text: str) -> bool:
        """Return whether the pattern occurs in `text`, as JSON Schema defines it."""
        self.work.spend(len(text) // 8)
        return self.pattern(pattern).matches(text, self.work.spend)

    def resolve(self, reference: Any) -> Any:
        """Return the schema at a local reference, such as `#/$defs/name`. Raises Unsatisfiable for any other."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise Unsatisfiable(f"the reference {str(reference)[:80]!r} does not point into the same schema")
        found = self.root
        for escaped in reference.split("/")[1:]:
            name = unquote(escaped).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise Unsatisfiable(f"the reference {reference[:80]!r} has no target") from None
        return found
