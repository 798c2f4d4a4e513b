"""The GPU run needs only Python, torch, transformers and what these two require.

A process imports all modules of the run while every other installed package is hidden, as on a machine that has nothing
else. Packages that torch and transformers use only where they are installed are hidden too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hang_guard import HANG_S

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
OWN = ("benchmarks", "dispatcher", "gpu_worker")
MODULES = [
    "benchmarks.gpu_once",
    *sorted(f"benchmarks.gpu.{path.stem}" for path in (ROOT / "benchmarks" / "gpu").glob("[a-z]*.py")),
]

HIDE_THE_REST = """
import importlib, sys, sysconfig
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def closure(names):
    found, to_see = set(), list(names)
    while to_see:
        name = canonicalize_name(to_see.pop())
        if name in found:
            continue
        try:
            requirements = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        found.add(name)
        to_see += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found

needed = closure(["torch", "transformers"])
tops = {top for top, names in packages_distributions().items() if needed & {canonicalize_name(name) for name in names}}
allowed = tops | set(sys.stdlib_module_names) | set(OWN)

standard = sysconfig.get_paths()["stdlib"]

def is_allowed(name, file):
    return name.partition(".")[0] in allowed or bool(file) and file.startswith(standard) and "-packages" not in file

class Visible:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        return spec if spec is not None and is_allowed(name, spec.origin) else None

    @staticmethod
    def find_distributions(context):
        visible = context.name is None or canonicalize_name(context.name) in needed
        return PathFinder.find_distributions(context) if visible else ()

before = set(sys.modules)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Visible]
for name in MODULES:
    importlib.import_module(name)
new = {name: getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - before}
print(*sorted(name for name, file in new.items() if file and not is_allowed(name, file)))
"""


def import_alone(modules: list[str]) -> subprocess.CompletedProcess[str]:
    code = f"OWN, MODULES = {OWN!r}, {modules!r}\n{HIDE_THE_REST}"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)


def test_the_run_imports_torch_transformers_and_what_they_require() -> None:
    assert len(MODULES) > 6
    done = import_alone(MODULES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_another_package_is_not_found() -> None:
    assert "No module named 'boto3'" in import_alone(["boto3"]).stderr
