"""Imports that import-linter (pyproject.toml) cannot check: those at run time, and whatever is installed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hang_guard import HANG_S

ROOT = Path(__file__).parents[2]
PURE_FOLDERS = (
    "dispatcher/model",
    "dispatcher/policies",
    "dispatcher/fields",
    "dispatcher/responses",
    "gpu_worker/policies",
)
PURE_FILES = ("dispatcher/ports.py", "gpu_worker/engines/interface.py")
PURE = [
    *sorted(path for folder in PURE_FOLDERS for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / file for file in PURE_FILES),
]
ENCODER = ROOT / "dispatcher/model/exact_json.py"
"""The one pure module with a library: msgspec encodes frames and the log."""
OWN = {"dispatcher", "gpu_worker"}
NETWORK = ("boto3", "botocore", "starlette", "uvicorn", "aiohttp", "httpx")
HEAVY = ("torch", "transformers", *NETWORK, "moto", "openai", "pydantic")
BLOCKED = ("pydantic", *NETWORK, "torch", "transformers", "numpy", "rich")

IMPORT_BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, Blocker())
for name in MODULES:
    importlib.import_module(name)
"""


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pure_modules_import_the_standard_library_alone(path: Path) -> None:
    assert _foreign(path.read_text()) == ({"msgspec"} if path == ENCODER else set())


@pytest.mark.parametrize(
    "line", ["import numpy", "from pydantic import BaseModel", "def f():\n    import boto3.session"]
)
def test_a_foreign_import_is_seen(line: str) -> None:
    assert _foreign(line)


def test_the_scheduling_core_runs_on_a_bare_python() -> None:
    done = _bare_python([_module(path) for path in PURE], BLOCKED)
    assert done.returncode == 0, done.stderr


def test_a_blocked_import_is_seen() -> None:
    assert "pydantic is not to be imported here" in _bare_python(["dispatcher.workers.wire"], ("pydantic",)).stderr


@pytest.mark.parametrize(
    "package", ["dispatcher", "functions", "gpu_worker", "gpu_worker.engines", "headgate", "headgate.client", "infra"]
)
def test_packages_import_nothing_heavy(package: str) -> None:
    assert _loaded_by(f"import {package}") == []


def test_help_is_light() -> None:
    pytest.importorskip("typer")
    assert _loaded_by("import headgate.cli as c; sys.argv = ['headgate', '--help']; c.main()") == []


@pytest.mark.parametrize("name", ["Headgate", "Answer"])
def test_the_client_names_the_extra_that_it_needs(name: str) -> None:
    ended = _python(f"import sys\nsys.modules['openai'] = None\nfrom headgate.client import {name}")
    assert "pip install 'headgate[client]'" in ended.stderr.splitlines()[-1]


def test_a_command_names_the_extra_that_it_needs() -> None:
    ended = _python(
        "import sys\nsys.modules['openai'] = None\nsys.argv[1:] = ['invoke', 'x']\nimport headgate.cli as c\nc.main()"
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "pip install 'headgate[client]'" in ended.stderr


def test_a_heavy_module_is_seen() -> None:
    assert _loaded_by("import boto3") == ["boto3", "botocore"]


def _module(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def _foreign(text: str) -> set[str]:
    """Top-level names imported anywhere in a module that are neither the standard library's nor ours."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names - OWN - sys.stdlib_module_names


def _bare_python(modules: list[str], blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return _python(f"BLOCKED, MODULES = {blocked!r}, {modules!r}\n{IMPORT_BLOCKED}")


def _loaded_by(statement: str) -> list[str]:
    """Which heavy modules a fresh process has loaded after it."""
    report = f"print({'='!r} + json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))))"
    done = _python(f"import sys, json, atexit\natexit.register(lambda: {report})\n{statement}")
    return list(json.loads(done.stdout.rpartition("=")[2]))


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
