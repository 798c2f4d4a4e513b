"""The list of vLLM's names against our sources and against classes that lack one. It needs no vLLM."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu_worker.engines.vllm import compatibility
from gpu_worker.engines.vllm.compatibility import (
    IncompatibleVllm,
    NameCheck,
    check_names,
    describe_missing,
    is_tested,
    require_vllm,
)
from gpu_worker.engines.vllm.names import VLLM_NAMES, VllmName, VllmPart
from packages.headgate_vllm import build_backend

ROOT = Path(__file__).parents[4]
EDGE = ROOT / "gpu_worker/engines/vllm"
PLUGIN = ROOT / "headgate_vllm"
ALSO_EDGE = ("protocol.py", "stats_endpoint.py", "scheduler_choice.py", "tenants.py", "in_process.py")
"""Modules that get vLLM's objects without an import of vLLM."""

RECEIVERS = {
    "Scheduler": ("vllm", "scheduler", "self._scheduler"),
    "VllmConfig": ("vllm_config", "vllm.vllm_config"),
    "SchedulerConfig": ("vllm.scheduler_config", "self._scheduler.scheduler_config", "vllm_config.scheduler_config"),
    "ParallelConfig": ("parallel", "vllm_config.parallel_config"),
    "ModelConfig": ("model",),
    "Request": ("request", "vllm.requests[request_id]", "self._waiting(request_id)"),
    "SchedulerOutput": ("scheduler_output", "output"),
    "ModelRunnerOutput": ("model_runner_output",),
    "NewRequestData": ("new",),
    "CachedRequestData": ("cached",),
    "KVCacheManager": ("manager", "self._manager", "scheduler.kv_cache_manager", "self._kv_cache_manager"),
    "KVCacheCoordinator": ("manager.coordinator", "self._manager.coordinator"),
    "FullAttentionManager": ("kv_manager",),
    "LoRAConfig": ("config",),
    "LoRARequest": ("wanted", "request.lora_request"),
    "BlockPool": ("self._manager.block_pool", "scheduler.kv_cache_manager.block_pool"),
    "KVCacheBlock": ("block",),
    "KVCacheConfig": ("kv_cache_config",),
    "KVCacheTensor": ("placed",),
    "AsyncLLM": ("engine_client",),
    "AsyncMPClient": ("engine_core",),
    "EngineCoreRequest": ("core_request",),
    "KVTransferConfig": ("self._kv_transfer_config", "transfer"),
}
"""How our modules name vLLM's objects. An attribute of any other object must be ours, a library's or in the list."""
STRUCTURED_OUTPUT = "grammar"  # waiting_queue.py names the request's structured output `output` too
OTHERS = {
    *("array", "float32", "int64", "uint8", "ones", "zeros", "Tensor", "dtype", "empty", "tensor", "device", "type"),
    *("untyped_storage", "index_copy_", "index_select", "shape", "copy_", "to", "set_", "itemsize"),
    *("CDLL", "prctl", "SIGTERM", "environ", "getppid", "argv", "exit", "platform", "state", "engine_client"),
    *("heappop", "heappush", "monotonic", "perf_counter", "dumps", "getLogger", "warning", "register", "unregister"),
    *("inf", "isfinite", "loads", "TOMLDecodeError", "strerror", "hexdigest", "attaches", "read_text"),
}
"""Attributes of numpy, torch, the standard library, Starlette and Prometheus that these modules use."""


def edge_modules() -> dict[str, ast.Module]:
    paths = sorted([*EDGE.glob("*.py"), *PLUGIN.glob("*.py")])
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    return {name: tree for name, tree in trees.items() if name in ALSO_EDGE or list(imports_of(tree))}


def imports_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
            yield from ((node.module or "", each.name) for each in node.names)


@cache
def names_defined_by_us() -> set[str]:
    """Return functions, classes, fields and attributes of all our modules that work with vLLM."""
    found: set[str] = set()
    for path in {*build_backend.find_closure(ROOT).values(), *EDGE.glob("*.py")}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                for target in targets:
                    for each in ast.walk(target):
                        if isinstance(each, ast.Name):
                            found.add(each.id)
                        elif isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self":
                            found.add(each.attr)
    return found


def names_of_the_mixin(tree: ast.Module) -> set[str]:
    """Return what our scheduler adds to vLLM's: other modules of ours read it from the same object."""
    return {
        each.name if isinstance(each, ast.FunctionDef) else each.attr
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for each in ast.walk(node)
        if isinstance(each, ast.FunctionDef)
        or (isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self")
    }


def method_names(entry: VllmName) -> set[str]:
    return {method.partition("(")[0] for method in (*entry.calls, *entry.hooks)}


def listed_of(kind: str) -> set[str]:
    return {name for entry in VLLM_NAMES if entry.name == kind for name in (*entry.attributes, *method_names(entry))}


LISTED = {name for entry in VLLM_NAMES for name in (entry.name, *entry.attributes, *method_names(entry))}
BUILTIN = {name for kind in (dict, list, set, str, int, float, bytes, tuple, type, object) for name in dir(kind)}


def unlisted_uses(modules: dict[str, ast.Module]) -> list[str]:
    """Return the uses of vLLM's names that the list lacks."""
    kinds = {text: kind for kind, texts in RECEIVERS.items() for text in texts}
    ours = names_defined_by_us()
    allowed = {"Scheduler": names_of_the_mixin(edge_modules()["scheduler.py"]), "SchedulerOutput": {STRUCTURED_OUTPUT}}
    listed_imports = {(entry.module, entry.name) for entry in VLLM_NAMES}
    found = []
    for file, tree in modules.items():
        found += [
            f"{file}: {module}.{name}" for module, name in imports_of(tree) if (module, name) not in listed_imports
        ]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            receiver = ast.unparse(node.value)
            if (kind := kinds.get(receiver)) is None:
                if node.attr not in LISTED | ours | BUILTIN | OTHERS:
                    found.append(f"{file}: {receiver}.{node.attr}")
            elif node.attr not in listed_of(kind) | allowed.get(kind, set()):
                found.append(f"{file}: {receiver}.{node.attr} of {kind}")
    return found


def test_the_list_has_each_use_in_our_sources() -> None:
    assert unlisted_uses(edge_modules()) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from vllm.v1.request import StreamingUpdate", "vllm.v1.request.StreamingUpdate"),
        ("def f(request): return request.arrival_time", "request.arrival_time of Request"),
        ("def f(request): return request.tenant", "request.tenant of Request"),
        ("def f(vllm): vllm.skipped_waiting = 1", "vllm.skipped_waiting of Scheduler"),
        ("def f(anything): return anything.num_gpu_layers", "anything.num_gpu_layers"),
    ],
)
def test_a_use_that_is_not_listed_is_found(line: str, found: str) -> None:
    assert unlisted_uses({"planted.py": ast.parse(line)}) == [f"planted.py: {found}"]


def test_the_list_has_nothing_without_a_use() -> None:
    modules = edge_modules()
    imported = {name for tree in modules.values() for _, name in imports_of(tree)}
    used: set[str] = set()
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                used.add(node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
            elif isinstance(node, ast.Name):
                used.add(node.id)
    unused = [
        f"{entry.name}.{name}"
        for entry in VLLM_NAMES
        for name in (*entry.attributes, *method_names(entry))
        if name not in used
    ]
    assert unused == []
    assert [
        entry.name for entry in VLLM_NAMES if not (entry.attributes or method_names(entry) or entry.name in imported)
    ] == []


def test_the_list_has_the_arguments_that_we_pass() -> None:
    """For a call: as many in order, and the same names. For a hook: what our method takes."""
    calls: dict[str, list[tuple[int, set[str]]]] = {}
    hooks: dict[str, list[list[str]]] = {}
    for entry in VLLM_NAMES:
        methods = [*entry.calls, *([f"{entry.name}{entry.call}"] if entry.call else [])]
        for name, _, text in (method.partition("(") for method in methods):
            in_order, by_name = compatibility._read_arguments(text)
            calls.setdefault(name, []).append((len(in_order), set(by_name)))
        for name, _, text in (method.partition("(") for method in entry.hooks):
            hooks.setdefault(name, []).append(compatibility._read_arguments(text)[0])
    wrong = []
    for file, tree in edge_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not ast.unparse(node.func).startswith("super()"):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                passed = len(node.args), {each.arg for each in node.keywords}
                if name in calls and not any(passed[0] <= n and passed[1] <= by_name for n, by_name in calls[name]):
                    wrong.append(f"{file}: {ast.unparse(node)[:80]}")
            if isinstance(node, ast.ClassDef) and node.bases:
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name in hooks and each.name != "__init__":
                        takes = [argument.arg for argument in each.args.args[1:]]
                        if takes not in hooks[each.name]:
                            wrong.append(f"{file}: {node.name}.{each.name}({', '.join(takes)})")
    assert wrong == []


class Base:
    """A stand-in for a class of vLLM."""

    field: int

    def __init__(self) -> None:
        self.running: list[str] = []

    def run(self, request: str, *, late: bool) -> None:
        """Do nothing."""

    @classmethod
    def make(cls, name: str) -> None:
        """Do nothing."""

    @property
    def usage(self) -> float:
        return 0.0


def findings(**fields: Any) -> list[tuple[str, str]]:
    sys.modules["stand_in"] = module = ModuleType("stand_in")
    module.__dict__.update(Base=Base, make=lambda request, block=0: None)
    entry = VllmName(VllmPart.SWAP, **{"module": "stand_in", "name": "Base", **fields})
    try:
        return [(each.name.removeprefix("stand_in."), each.problem) for each in check_names([entry])]
    finally:
        del sys.modules["stand_in"]


@pytest.mark.parametrize(
    ("fields", "name", "problem"),
    [
        ({"module": "stand_in.gone"}, "gone.Base", "is missing (ModuleNotFoundError)"),
        ({"name": "Gone"}, "Gone", "is missing (AttributeError)"),
        ({"attributes": ("waiting",)}, "Base.waiting", "is missing"),
        ({"calls": ("gone()",)}, "Base.gone()", "is missing"),
        ({"calls": ("run(request)",)}, "Base.run()", "needs an argument late, which is new"),
        ({"calls": ("run(request, *, late, soon)",)}, "Base.run()", "has no argument soon"),
        ({"calls": ("run(request, step, *, late)",)}, "Base.run()", "takes 1 arguments, not 2"),
        ({"hooks": ("run(request)",)}, "Base.run()", "takes (request, late), not (request)"),
        ({"hooks": ("run(late, request)",)}, "Base.run()", "takes (request, late), not (late, request)"),
        ({"name": "make", "call": "()"}, "make", "needs an argument request, which is new"),
    ],
)
def test_a_name_that_vllm_lacks_is_found(fields: dict[str, Any], name: str, problem: str) -> None:
    assert (name, problem) in findings(**fields)


def test_names_that_are_there_have_no_problem() -> None:
    assert {problem for _, problem in findings(
        attributes=("field", "running", "usage"), call="()", calls=("run(request, *, late)", "make(name)"),
        hooks=("run(request, late)",),
    )} == {""}  # fmt: skip
    assert findings(name="make", call="(request)") == [("make", "")]


def test_only_the_parts_in_use_are_checked() -> None:
    gone = VllmName(VllmPart.SWAP, "stand_in", "Gone")
    assert list(check_names([gone], [VllmPart.SCHEDULER])) == []


def test_the_start_fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "VLLM_NAMES", (VllmName(VllmPart.SCHEDULER, "json", "gone"),))
    monkeypatch.setattr(compatibility, "installed_version", lambda: "0.9.1")
    with pytest.raises(IncompatibleVllm) as refused:
        require_vllm([VllmPart.SCHEDULER])
    assert str(refused.value) == (
        "headgate does not work with vLLM 0.9.1, because json.gone is missing (AttributeError); it works with vLLM 0.32"
    )
    require_vllm([VllmPart.SWAP])
    monkeypatch.setattr(compatibility, "installed_version", lambda: None)
    with pytest.raises(IncompatibleVllm, match="which is not installed"):
        require_vllm([VllmPart.SCHEDULER])


def test_the_sentence_counts_what_else_is_missing() -> None:
    missing = [NameCheck(VllmPart.SWAP, f"vllm.{name}", "is missing") for name in "abc"]
    assert "vllm.a is missing and 2 other names do not fit; it works" in describe_missing("0.40.0", missing)


@pytest.mark.parametrize(
    ("version", "tested"),
    [("0.32.0", True), ("0.32", True), ("0.32.1+cpu", True), ("0.320.0", False), ("0.33.0", False)],
)
def test_a_release_is_tested_by_its_first_numbers(version: str, tested: bool) -> None:
    assert is_tested(version) is tested


def test_an_untested_version_with_all_names_starts_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compatibility, "VLLM_NAMES", ())
    for version, warned in (("0.32.0", False), ("0.33.0", True)):
        monkeypatch.setattr(compatibility, "installed_version", lambda version=version: version)
        caplog.clear()
        require_vllm([VllmPart.SCHEDULER])
        assert ("not with 0.33.0" in caplog.text) is warned
