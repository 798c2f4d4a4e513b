"""A bug, and how production code is changed for a while."""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch


class Edit(NamedTuple):
    """Replaces `old` by `new` in the source of a function of `owner` (a class or module)."""

    owner: Any
    name: str
    old: str
    new: str


class Value(NamedTuple):
    """An attribute of `owner` that gets another value."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True)
class Bug:
    """`rule`: the rule of docs/gate.md that it takes away; 0: none. `seed`: where it was found, tried first."""

    name: str
    what: str
    changes: Sequence[Edit | Value]
    rule: int = 0
    seed: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have production code contain the bug."""
        edits: dict[Any, list[Edit]] = {}
        with ExitStack() as stack:
            for change in self.changes:
                if isinstance(change, Value):
                    stack.enter_context(patch.object(change.owner, change.name, change.value, create=True))
                else:
                    edits.setdefault(_function(change), []).append(change)
            for function, changes in edits.items():
                stack.enter_context(_edited(function, changes))
            yield


BUGS: dict[str, Bug] = {}


def bug(name: str, what: str, *changes: Edit | Value, rule: int = 0, seed: int = 0) -> None:
    """Register a bug."""
    BUGS[name] = Bug(name, what, changes, rule, seed)


def _function(edit: Edit) -> Any:
    original = inspect.getattr_static(edit.owner, edit.name)
    return original.fget if isinstance(original, property) else original


@contextmanager
def _edited(function: Any, edits: Sequence[Edit]) -> Iterator[None]:
    """Run other code in the function, wherever it was imported. Raises ValueError if the text to change is gone, or if
    the new text has a name that its module lacks: an error at each call is not the bug."""
    source = inspect.getsource(function)
    for edit in edits:
        if edit.old not in source:
            raise ValueError(f"{edit.name} does not contain {edit.old!r}: the seeded bug must follow the code")
        source = source.replace(edit.old, edit.new)
    compiled = compile(
        "from __future__ import annotations\n" + textwrap.dedent(source), function.__code__.co_filename, "exec"
    )
    made: dict[str, Any] = {}
    exec(compiled, vars(sys.modules[function.__module__]), made)  # noqa: S102 - the source is production code
    before = function.__code__
    function.__code__ = made[function.__name__].__code__
    if unknown := _unknown_names(function):
        function.__code__ = before
        raise ValueError(f"{function.__name__} with the bug uses {unknown}: the seeded bug must follow the code")
    try:
        yield
    finally:
        function.__code__ = before


def _unknown_names(function: Any) -> list[str]:
    """Return the global names in the function's code that neither its module nor Python has."""
    used = {each.argval for each in dis.get_instructions(function) if each.opname == "LOAD_GLOBAL"}
    return sorted(used - vars(sys.modules[function.__module__]).keys() - vars(builtins).keys())
