"""The functions of the gate that a storm reaches. `python -m tests.support.world.storm --reach` prints the others.

Each function's code is replaced by a stub, which notes the first call and puts the code back. So the count costs next
to nothing.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import dispatcher.policies.orders
import dispatcher.service
import dispatcher.shard
from dispatcher.policies import clocks, service, share_bounds, throttling
from dispatcher.policies.planning import fleet, wait_ratios

FIRST_CALL = "__storm_first_call__"
ELSEWHERE = {
    "dispatcher.service.tcp.": "the storm has a network of its own",
    "dispatcher.service.log_keeper.": "the sweep of a pool without a gate process",
    "dispatcher.service.gate.courier.Courier.finish": "the same",
    "dispatcher.service.gate.planning.PlannerProcess.": "the planner of a storm runs in the storm's own process",
    "dispatcher.service.gate.planning._begin": "the same",
    "dispatcher.service.gate.planning._end_with": "the same",
    "dispatcher.service.link.link.Link.close": "the end of a process in order",
    "dispatcher.service.link.link.Link.rest": "a frozen Lambda function",
    "dispatcher.service.gate.deciding.Decider._commit": "has no body",
    "dispatcher.service.frames._refuse_constant": "a frame that no process of ours sends",
    "dispatcher.shard.attempts._clamp_tokens": "an engine that reports numbers that cannot be",
    "dispatcher.policies.orders.interface.registered": "at import",
    "dispatcher.policies.orders.baselines._Baseline.goes_at_once": "never asked of a conserving order",
    "dispatcher.policies.orders.two_clocks.TwoClocks.goes_at_once": "the same",
    "dispatcher.policies.orders.baselines.KeyedIndex.direct": "only with tiers, which need another order",
    "dispatcher.policies.orders.baselines.KeyedIndex.guaranteed": "the same",
    "dispatcher.policies.service.service_": "the worker and the simulator",
    "dispatcher.policies.share_bounds.share_problem": "headgate doctor",
    "dispatcher.policies.throttling.Throttle.decide": "the simulator",
}
"""Functions, by the beginning of their names, that no storm can reach, and what calls them."""
POLICIES: list[ModuleType] = [clocks, service, share_bounds, throttling, fleet, wait_ratios]


def functions() -> dict[str, FunctionType]:
    """Return the gate's functions by name: those of the shard, its policies, and the service."""
    found: dict[str, FunctionType] = {}
    for module in _modules():
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__ or getattr(value, "_is_protocol", False):
                continue
            if inspect.isclass(value):
                for attribute, member in vars(value).items():
                    if (function := _function_of(member)) is not None:
                        found[f"{module.__name__}.{name}.{attribute}"] = function
            elif (function := _function_of(value)) is not None:
                found[f"{module.__name__}.{name}"] = function
    by_module = {module.__name__: module.__file__ for module in _modules()}
    return {
        name: function
        for name, function in found.items()
        if not name.startswith(tuple(ELSEWHERE))
        and function.__module__ in by_module
        and function.__code__.co_filename == by_module[function.__module__]
    }


def _modules() -> Iterator[ModuleType]:
    yield from POLICIES
    for package in (dispatcher.shard, dispatcher.policies.orders, dispatcher.service):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(info.name)


def _function_of(member: Any) -> FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    return member if isinstance(member, FunctionType) and not member.__name__.startswith("__") else None


class Reach:
    """Notes the functions that are called."""

    def __init__(self) -> None:
        self.missed = functions()
        """The functions that were not called yet."""
        self._codes: dict[str, CodeType] = {}

    def watch(self) -> None:
        """Note calls from now on, until the end of this process."""
        setattr(builtins, FIRST_CALL, self._first_call)
        self._codes = {name: function.__code__ for name, function in self.missed.items()}
        for name, function in self.missed.items():
            function.__code__ = _stub(name, function)

    def _first_call(self, name: str) -> FunctionType:
        function = self.missed.pop(name)
        function.__code__ = self._codes[name]
        return function


def _stub(name: str, function: FunctionType) -> CodeType:
    source = f"def stub(*arguments, **options):\n    return {FIRST_CALL}({name!r})(*arguments, **options)\n"
    made: dict[str, Any] = {}
    exec(compile(source, function.__code__.co_filename, "exec"), made)  # noqa: S102 - the source is above
    code: CodeType = made["stub"].__code__
    return code.replace(co_freevars=function.__code__.co_freevars)
