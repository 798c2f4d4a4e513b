"""Notes the inverse of each primitive change, so that facts that were not written can be undone (rule 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Undo = tuple[Callable[..., Any], tuple[Any, ...]]


class UndoJournal:
    def __init__(self) -> None:
        self.undo: list[Undo] | None = None

    def assign(self, name: str, value: object) -> None:
        """Assign one attribute of this state."""
        self._note(self.assign, name, getattr(self, name))
        setattr(self, name, value)

    def _note(self, inverse: Callable[..., Any], *arguments: Any) -> None:
        if self.undo is not None:
            self.undo.append((inverse, arguments))
