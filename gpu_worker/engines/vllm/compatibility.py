"""Whether the installed vLLM has every name that our code uses (names.py), and the sentence if it has not.

Only the parts in use are checked, before our modules import them: so a vLLM that lacks a name ends the start with one
sentence and not with an ImportError or, later, with an AttributeError in a step. A version that was not tested but has
all names starts, with a warning.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from gpu_worker.engines.vllm.names import TESTED_VERSIONS, VLLM_NAMES, VllmName, VllmPart

_log = logging.getLogger(__name__)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class IncompatibleVllm(Exception):
    """This vLLM lacks a name, or none is installed. The message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class NameCheck:
    """One name. `problem`: what is wrong with it; "" for a name that is as our code needs it."""

    part: VllmPart
    name: str
    problem: str


def require_vllm(parts: Collection[VllmPart]) -> None:
    """Raise IncompatibleVllm unless the installed vLLM has all names of these parts. Warn of an untested version."""
    version = installed_version()
    if version is None:
        raise IncompatibleVllm(f"headgate's scheduler needs vLLM {_tested_versions()}, which is not installed")
    missing = [found for found in check_names(VLLM_NAMES, parts) if found.problem]
    if missing:
        raise IncompatibleVllm(describe_missing(version, missing))
    if not is_tested(version):
        _log.warning(
            "headgate was tested with vLLM %s, not with %s, which has all names it uses", _tested_versions(), version
        )


def describe_missing(version: str, missing: list[NameCheck]) -> str:
    """Return the sentence for a vLLM that lacks names."""
    first = f"{missing[0].name} {missing[0].problem}"
    more = f" and {len(missing) - 1} other names do not fit" if len(missing) > 1 else ""
    return f"headgate does not work with vLLM {version}, because {first}{more}; it works with vLLM {_tested_versions()}"


def is_tested(version: str) -> bool:
    return any(version == tested or version.startswith(f"{tested}.") for tested in TESTED_VERSIONS)


def installed_version() -> str | None:
    """Return vLLM's version; None if there is no vLLM."""
    try:
        return str(importlib.import_module("vllm").__version__)
    except ImportError:
        return None


def check_names(names: Iterable[VllmName], parts: Collection[VllmPart] = tuple(VllmPart)) -> Iterator[NameCheck]:
    """Yield a finding for every class, function, attribute and method of these parts."""
    for each in names:
        if each.part in parts:
            yield from _check(each)


def _check(each: VllmName) -> Iterator[NameCheck]:
    path = f"{each.module}.{each.name}"
    try:
        target = getattr(importlib.import_module(each.module), each.name)
    except (ImportError, AttributeError) as error:
        yield NameCheck(each.part, path, f"is missing ({type(error).__name__})")
        return
    problem = "" if each.call is None else _problem_of_call(target, each.call, bound=True)
    yield NameCheck(each.part, path, problem)
    known = _attributes_of(target) if isinstance(target, type) else frozenset(dir(target))
    for attribute in each.attributes:
        yield NameCheck(each.part, f"{path}.{attribute}", "" if attribute in known else "is missing")
    for methods, check in ((each.calls, _problem_of_call), (each.hooks, _problem_of_hook)):
        for method in methods:
            name, _, arguments = method.partition("(")
            found = getattr(target, name, None)
            problem = "is missing" if found is None else check(found, arguments, bound=_is_bound(target, name))
            yield NameCheck(each.part, f"{path}.{name}()", problem)


@cache
def _attributes_of(kind: type) -> frozenset[str]:
    """Return what instances have: members and fields of the class, and what its methods set on an object."""
    names = set(dir(kind))
    for base in kind.__mro__:
        names.update(vars(base).get("__annotations__", {}))
        for member in vars(base).values():
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
            if isinstance(function, FunctionType):
                names.update(each.argval for each in dis.get_instructions(function) if each.opname == "STORE_ATTR")
    return frozenset(names)


def _problem_of_call(found: Callable[..., Any], arguments: str, *, bound: bool) -> str:
    """Return what is wrong with a function that we call with these arguments; "" for nothing."""
    parameters = _parameters(found, bound=bound)
    if parameters is None:
        return ""
    in_order, by_name = _read_arguments(arguments)
    positional = [each.name for each in parameters if each.kind in _POSITIONAL]
    if len(in_order) > len(positional):
        return f"takes {len(positional)} arguments, not {len(in_order)}"
    names = {each.name for each in parameters}
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    if lost := [name for name in by_name if name not in names and not takes_any]:
        return f"has no argument {lost[0]}"
    passed = {*positional[: len(in_order)], *by_name}
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if new := [each.name for each in needed if each.name not in passed]:
        return f"needs an argument {new[0]}, which is new"
    return ""


def _problem_of_hook(found: Callable[..., Any], arguments: str, *, bound: bool) -> str:
    """Return what is wrong with a method that ours replaces, which takes these arguments; "" for nothing."""
    parameters = _parameters(found, bound=bound)
    if parameters is None:
        return ""
    expected, _ = _read_arguments(arguments)
    passed = [each.name for each in parameters if each.kind not in _VARIADIC]
    if passed == expected:
        return ""
    return f"takes ({', '.join(passed)}), not ({', '.join(expected)})"


def _is_bound(target: object, name: str) -> bool:
    """Return whether a method takes no `self`: an object's, or one of the class itself."""
    return not isinstance(target, type) or isinstance(inspect.getattr_static(target, name), classmethod | staticmethod)


def _parameters(found: Callable[..., Any], *, bound: bool) -> list[inspect.Parameter] | None:
    """Return the parameters without `self`; None for a function without a signature that Python can read."""
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return None
    return parameters if bound else parameters[1:]


def _read_arguments(text: str) -> tuple[list[str], list[str]]:
    """Return the arguments in order, and those by name."""
    in_order, _, by_name = text.strip("()").partition("*")
    return _words(in_order), _words(by_name)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _tested_versions() -> str:
    return " and ".join(TESTED_VERSIONS)
