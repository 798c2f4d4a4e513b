"""The wheel of headgate-vllm: built from this tree, with what it needs and nothing that is another distribution's."""

from __future__ import annotations

import ast
import base64
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from packages.headgate_vllm import build_backend
from tests.support.hang_guard import HANG_S

IMPORT_ALL = """
import importlib, sys
from importlib.machinery import ModuleSpec
from types import ModuleType

class Vllm(ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_: None, "HOST": None, "register": lambda *_: None})

class Finder:
    '''vLLM, and what only comes with it, as empty classes; nothing else but the standard library, numpy and torch.'''
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("vllm", "prometheus_client"):
            return ModuleSpec(name, self)
        if top in FORBIDDEN:
            raise ImportError(f"{name} is not to be imported here")
    def create_module(self, spec):
        return Vllm(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
sys.path.insert(0, WHEEL)
for name in MODULES:
    importlib.import_module(name)
from headgate_vllm.gpu_worker.policies.fairness.registry import all_policies, make_policy
print(sorted(all_policies()), type(make_policy("tiered:vtc")).__module__)
"""
FORBIDDEN = (
    *("gpu_worker", "dispatcher", "headgate", "functions", "infra", "pydantic", "boto3", "aiohttp", "httpx", "msgspec"),
    *("starlette", "uvicorn", "httptools", "yaml", "typer", "rich", "requests", "opentelemetry", "transformers"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return folder / build_backend.build_wheel(str(folder))


def modules_of(wheel: Path) -> list[str]:
    names = (name for name in ZipFile(wheel).namelist() if name.endswith(".py"))
    return [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in names]


def test_it_has_one_package_and_its_metadata(wheel: Path) -> None:
    files = ZipFile(wheel).namelist()
    assert len(files) == len(set(files))
    tops = {name.partition("/")[0] for name in files}
    assert tops == {"headgate_vllm", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    modules = set(modules_of(wheel))
    assert {"headgate_vllm.plugin", "headgate_vllm.gpu_worker.engines.vllm.scheduler"} <= modules
    assert "headgate_vllm.gpu_worker.policies.fairness.wsc" in modules, "policies are imported by their names"
    assert not [name for name in modules if "transformers" in name or "modelled" in name or "service." in name]
    assert len(modules) < 75, "the closure was 58 modules: what does a new import bring with it?"


def test_no_module_in_it_imports_another_distribution_of_ours(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        for name in opened.namelist():
            if name.endswith(".py"):
                imported = {each.partition(".")[0] for each in build_backend.imports_of(ast.parse(opened.read(name)))}
                assert imported <= {"headgate_vllm"}, name


def test_its_closure_imports_with_numpy_and_torch_only(wheel: Path) -> None:
    pytest.importorskip("torch")
    code = f"WHEEL, MODULES, FORBIDDEN = {str(wheel)!r}, {modules_of(wheel)!r}, {FORBIDDEN!r}\n{IMPORT_ALL}"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=wheel.parent, capture_output=True, text=True, timeout=HANG_S
    )
    assert ended.returncode == 0, ended.stderr
    assert "'tiered', 'vtc'" in ended.stdout
    assert ended.stdout.endswith("headgate_vllm.gpu_worker.policies.fairness.tiered\n")


def test_its_entry_points_name_what_it_has(wheel: Path) -> None:
    modules = set(modules_of(wheel))
    with ZipFile(wheel) as opened:
        info = next(name.partition("/")[0] for name in opened.namelist() if ".dist-info/" in name)
        points = opened.read(f"{info}/entry_points.txt").decode().splitlines()
        metadata = opened.read(f"{info}/METADATA").decode()
    found = {line.partition(" = ")[2].partition(":")[0] for line in points if " = " in line}
    assert len(found) == 2
    assert found <= modules
    assert [line for line in points if line.startswith("[")] == [
        "[vllm.general_plugins]",
        "[vllm.stat_logger_plugins]",
    ]
    assert metadata.startswith("Metadata-Version: 2.4\nName: headgate-vllm\nVersion: ")
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist")] == [
        "Requires-Dist: numpy",
        "Requires-Dist: torch",
    ]


def test_its_record_has_the_hash_of_each_file(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        record = next(name for name in opened.namelist() if name.endswith("/RECORD"))
        lines = dict(line.split(",", 1) for line in opened.read(record).decode().splitlines())
        assert lines.pop(record) == ","
        assert set(lines) == set(opened.namelist()) - {record}
        for name, line in lines.items():
            digest = base64.urlsafe_b64encode(sha256(opened.read(name)).digest()).rstrip(b"=").decode()
            assert line == f"sha256={digest},{len(opened.read(name))}"


def test_no_file_of_it_is_headgates_too() -> None:
    find = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert find["exclude"] == ["headgate_vllm*"]


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("from gpu_worker.a import b\n", "from headgate_vllm.gpu_worker.a import b\n"),
        ("def f():\n    from dispatcher import a\n", "def f():\n    from headgate_vllm.dispatcher import a\n"),
        ("P = 'gpu_worker.policies'\n", "P = 'headgate_vllm.gpu_worker.policies'\n"),
        ("é = 'ü', 'gpu_worker.a'\n", "é = 'ü', 'headgate_vllm.gpu_worker.a'\n"),
        ("x = gpu_worker = 'see gpu_worker.a'\n", "x = gpu_worker = 'see gpu_worker.a'\n"),
        ("from gpu_worker_of_others import b\n", "from gpu_worker_of_others import b\n"),
    ],
)
def test_only_names_of_modules_change(text: str, renamed: str) -> None:
    assert build_backend.rename_modules(text) == renamed


def test_an_import_that_cannot_be_renamed_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: write `from"):
        build_backend.rename_modules("import gpu_worker.a\n")
