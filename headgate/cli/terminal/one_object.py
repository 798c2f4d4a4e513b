"""Makes Typer commands of the types of their options: each option is declared once, with its type, default and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer import Option

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


def takes_fields(options: type[BaseModel], *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command from a function of keywords, which takes these fields of a model as options, beside its own.

    The model validates the values, so Typer takes any text for a field of certain words.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            function(**values)

        own = [each for each in _parameters(function) if each.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = [_parameter(name, options.model_fields[name]) for name in names]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature(sorted([*fields, *own], key=_is_optional))  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _is_optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    annotated: Any = Annotated  # the type is known at run time only
    option = Option(f"--{name.removesuffix('_s').replace('_', '-')}", help=field.description)
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=field.default,
        annotation=annotated[_plain_type(field.annotation), option],
    )


def _plain_type(annotation: Any) -> Any:
    """Return the type that Typer parses: without what only the model checks."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0])
    kinds = [_plain_type(each) for each in get_args(annotation) if each is not NoneType]
    return (kinds[0] | None) if kinds else annotation
