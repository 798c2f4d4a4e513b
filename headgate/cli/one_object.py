"""Makes Typer commands that take all their options as one object."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

O = TypeVar("O")  # noqa: E741


def takes(options: type[O]) -> Callable[[Callable[[O], None]], Callable[..., None]]:
    """Make a command from a function of one dataclass. Each field, annotated for Typer, is an option or argument."""

    def decorate(function: Callable[[O], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            function(options(**values))

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
        return command

    return decorate
