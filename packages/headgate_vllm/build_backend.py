"""Builds the wheel of headgate-vllm from this repository: a backend as pip expects it (PEP 517).

The wheel has the package `headgate_vllm` and, inside it, a copy of the modules of `gpu_worker` and `dispatcher` that it
imports. So a vLLM environment gets one new import name, and no top-level package with a name as general as
`dispatcher`. No installed file belongs to two distributions: headgate and headgate-vllm can be installed together, also
in different versions. In the copies, imports and names of modules begin with `headgate_vllm.`; nothing else is changed.
"""

from __future__ import annotations

import ast
import base64
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "headgate_vllm"
COPIED = ("gpu_worker", "dispatcher")
STARTS = (
    *(f"{PACKAGE}.{name}" for name in ("plugin", "check")),
    *(
        f"gpu_worker.engines.vllm.{name}"
        for name in ("scheduler_choice", "scheduler", "swap", "stats_logger", "tenants", "in_process")
    ),
)
FOLDERS = ("gpu_worker.policies.fairness",)
"""Packages with modules that are imported by their names at run time."""
_MODULE_NAME = re.compile(rf"(?:{'|'.join(COPIED)})(?:\.\w+)+")
_FALLBACK_VERSION = "0.1.dev0"


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return nothing beyond pyproject.toml."""
    return []


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """Refuse: the sources are the repository."""
    raise NotImplementedError("headgate-vllm is built from headgate's repository: pip wheel packages/headgate_vllm")


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Write the wheel, and return its name. The same sources and version give the same bytes."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = _version()
    files = dict(_modules())
    info = f"{PACKAGE}-{version}.dist-info"
    files |= {f"{PACKAGE}/py.typed": "", f"{info}/METADATA": _metadata(project, version)}
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: headgate\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = _entry_points(project["entry-points"])
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_text(encoding="utf-8")
    lines = [_record_line(name, text.encode()) for name, text in files.items()]
    files[f"{info}/RECORD"] = "".join(f"{line}\n" for line in (*lines, f"{info}/RECORD,,"))
    name = f"{PACKAGE}-{version}-py3-none-any.whl"
    with ZipFile(Path(wheel_directory) / name, "w", ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            member = ZipInfo(path)
            member.compress_type, member.external_attr = ZIP_DEFLATED, 0o644 << 16
            wheel.writestr(member, text)
    return name


def _modules() -> Iterator[tuple[str, str]]:
    """Yield the path of each module in the wheel, with its text."""
    for module, source in sorted(find_closure(ROOT).items()):
        is_own = module.partition(".")[0] == PACKAGE
        path = source.relative_to(ROOT).as_posix()
        yield path if is_own else f"{PACKAGE}/{path}", rename_modules(source.read_text(encoding="utf-8"))


def find_closure(root: Path) -> dict[str, Path]:
    """Return the files that the wheel needs, by module: all that STARTS and FOLDERS import, also within functions."""
    found: dict[str, Path] = {}
    waiting = [*STARTS]
    for folder in FOLDERS:
        waiting += [f"{folder}.{path.stem}" for path in (root / folder.replace(".", "/")).glob("*.py")]
    while waiting:
        parts = waiting.pop().split(".")
        for length in range(1, len(parts) + 1):
            module = ".".join(parts[:length])
            source = _source_of(root, module)
            if source is not None and module not in found:
                found[module] = source
                waiting += imports_of(ast.parse(source.read_text(encoding="utf-8")))
    return found


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of ours that a module may import: `from a import b` may mean a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in (*COPIED, PACKAGE))


def rename_modules(text: str) -> str:
    """Return a module's text in which imports and texts that are names of our modules begin with `headgate_vllm.`."""
    lines = text.splitlines(keepends=True)
    for node in sorted(_places(ast.parse(text)), key=lambda node: (node.lineno, node.col_offset), reverse=True):
        number = node.lineno - 1
        start = len(lines[number].encode()[: node.col_offset].decode())
        head, tail = lines[number][:start], lines[number][start:]
        lines[number] = head + re.sub(rf"\b({'|'.join(COPIED)})\b", rf"{PACKAGE}.\1", tail, count=1)
    return "".join(lines)


def _places(tree: ast.Module) -> Iterator[ast.ImportFrom | ast.Constant]:
    for node in ast.walk(tree):
        if (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in COPIED) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_NAME.fullmatch(node.value)
        ):
            yield node
        elif isinstance(node, ast.Import) and any(each.name.partition(".")[0] in COPIED for each in node.names):
            raise ValueError(f"line {node.lineno}: write `from … import …`, which can be renamed")


def _source_of(root: Path, module: str) -> Path | None:
    path = root / module.replace(".", "/")
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)


def _version() -> str:
    try:
        from setuptools_scm import get_version
    except ImportError:
        return _FALLBACK_VERSION
    return str(get_version(root=str(ROOT), fallback_version=_FALLBACK_VERSION))


def _metadata(project: Mapping[str, Any], version: str) -> str:
    fields = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": version,
        "Summary": project["description"],
        "License-Expression": project["license"],
        "License-File": "LICENSE",
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    lines = [f"{name}: {value}" for name, value in fields.items()]
    lines += [f"Requires-Dist: {each}" for each in project["dependencies"]]
    return "\n".join([*lines, "", (HERE / project["readme"]).read_text(encoding="utf-8")])


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> str:
    parts: Iterable[str] = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in groups.items()
    )
    return "\n\n".join(parts) + "\n"


def _record_line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"
