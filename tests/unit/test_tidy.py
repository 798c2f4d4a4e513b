"""Style as a test: what a reader relies on everywhere, and what no reviewer should have to look for.

Each rule is a function from a source file to its findings. Every rule is tried on a planted snippet that breaks it, so
that a rule which finds nothing anywhere is not one that cannot find anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("dispatcher", "functions", "gpu_worker", "headgate", "infra")
REAL_WORLD = "dispatcher/processes/bootstrap.py"
"""The one place that makes the real clock, ids and random source."""
LINES_MAX = 450
BANNED = {"time.time", "time.time_ns", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom"} | {
    f"datetime.{kind}.{call}" for kind in ("datetime", "date") for call in ("now", "utcnow", "today")
}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".json", ".sh", ".yml", ".yaml", ".cfg", ".lock", ""}
NOT_OURS = {"node_modules", "build", "dist", "cdk.out", "__pycache__"}


@dataclass(frozen=True)
class Source:
    """A file, by its path from the project's root."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


Rule = Callable[[Source], Iterator[str]]


def world_is_handed_in(source: Source) -> Iterator[str]:
    """No clock, no id maker and no random source but those that bootstrap makes."""
    if source.path == REAL_WORLD:
        return
    names = _imported(source.tree)
    for node in ast.walk(source.tree):
        name = _dotted(node, names)
        if name in BANNED or _is_global_random(name):
            yield f"line {node.lineno}: {name}: take it as a parameter; {REAL_WORLD} makes the real one"  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and _dotted(node.func, names) == "random.Random" and not node.args:
            yield f"line {node.lineno}: Random() without a seed; {REAL_WORLD} makes the real one"


def file_is_short(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > LINES_MAX:
        yield f"{lines} lines; split it by concept, never by size (at most {LINES_MAX})"


def library_does_not_print(source: Source) -> Iterator[str]:
    if source.path.startswith("headgate/cli/"):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: print() in a library; log it, or return it"


def module_says_what_it_is(source: Source) -> Iterator[str]:
    name = Path(source.path).stem
    is_public = not name.startswith("_") or name.startswith("__")
    if is_public and not ast.get_docstring(source.tree):
        yield "no docstring"


def names_no_machine(source: Source) -> Iterator[str]:
    """No path that exists on one machine only."""
    for number, line in enumerate(source.text.splitlines(), 1):
        found = re.search(r"(?<![\w.}$*)/-])(/(home|root|work|Users|mnt)/[\w.-]+|[A-Z]:\\+Users)", line)
        if found:
            yield f"line {number}: {found.group()} is a path of one machine"


PRODUCT_RULES: list[Rule] = [world_is_handed_in, file_is_short, library_does_not_print, module_says_what_it_is]


@pytest.mark.parametrize("rule", PRODUCT_RULES, ids=lambda rule: rule.__name__)
def test_product_is_tidy(rule: Rule) -> None:
    sources = [source for source in _sources() if source.path.startswith(PRODUCT) and source.path.endswith(".py")]
    assert len(sources) > 50, "the product's sources were not found"
    assert _findings(rule, sources) == []


def test_nothing_names_a_machine() -> None:
    assert _findings(names_no_machine, list(_sources())) == []


PLANTED: list[tuple[Rule, str, str]] = [
    (world_is_handed_in, "dispatcher/a.py", "import time\nstarted = time.time()\n"),
    (world_is_handed_in, "dispatcher/a.py", "from time import time as clock\nmake(clock)\n"),
    (world_is_handed_in, "gpu_worker/a.py", "import datetime as dt\nnow = dt.datetime.now(dt.UTC)\n"),
    (world_is_handed_in, "gpu_worker/a.py", "from datetime import datetime\nnow = datetime.utcnow()\n"),
    (world_is_handed_in, "headgate/a.py", "import random\nx = random.choice([1])\n"),
    (world_is_handed_in, "headgate/a.py", "from random import shuffle\nshuffle(x)\n"),
    (world_is_handed_in, "headgate/a.py", "from random import Random\nx = Random()\n"),
    (world_is_handed_in, "functions/a.py", "import uuid\nx = uuid.uuid4()\n"),
    (world_is_handed_in, "functions/a.py", "from uuid import uuid4\nx = uuid4().hex\n"),
    (file_is_short, "headgate/a.py", "x = 1\n" * (LINES_MAX + 1)),
    (library_does_not_print, "headgate/local/a.py", "def f():\n    print('x')\n"),
    (module_says_what_it_is, "headgate/a.py", "x = 1\n"),
    (module_says_what_it_is, "headgate/__init__.py", "x = 1\n"),
    (names_no_machine, "docs/a.md", "run " + "/home" + "/user/headgate\n"),
    (names_no_machine, "a.py", "PLACE = '" + "/Users" + "/user'\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert _findings(rule, [Source(path, text)])


SOUND: list[tuple[Rule, str, str]] = [
    (world_is_handed_in, REAL_WORLD, "import time\nnow = time.time()\n"),
    (world_is_handed_in, "dispatcher/a.py", "import time\nstarted = time.monotonic()\n"),
    (world_is_handed_in, "dispatcher/a.py", "from random import Random\ndef f(seed): return Random(seed)\n"),
    (world_is_handed_in, "dispatcher/a.py", "def f(clock, random): return clock.time() + random.random()\n"),
    (file_is_short, "headgate/a.py", "x = 1\n" * LINES_MAX),
    (library_does_not_print, "headgate/cli/a.py", "print('x')\n"),
    (library_does_not_print, "headgate/a.py", "console.print('x')\n"),
    (module_says_what_it_is, "headgate/_private.py", "x = 1\n"),
    (names_no_machine, "a.md", "http://host/home/page and {root}/work/x and a/work/b\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), SOUND)
def test_a_rule_lets_pass_what_is_sound(rule: Rule, path: str, text: str) -> None:
    assert _findings(rule, [Source(path, text)]) == []


def _findings(rule: Rule, sources: list[Source]) -> list[str]:
    return [f"{source.path}: {finding}" for source in sources for finding in rule(source)]


@cache
def _sources() -> tuple[Source, ...]:
    return tuple(_read_sources())


def _read_sources() -> Iterator[Source]:
    for folder in sorted(path for path in ROOT.iterdir() if not path.name.startswith(".") or path.name == ".ci"):
        files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
        for path in files:
            inside = path.relative_to(ROOT)
            if path.is_file() and path.suffix in TEXT_SUFFIXES and not _is_foreign(inside):
                yield Source(inside.as_posix(), path.read_text(encoding="utf-8", errors="replace"))


def _is_foreign(inside: Path) -> bool:
    return bool(NOT_OURS & set(inside.parts)) or any(part.endswith(".egg-info") for part in inside.parts)


def _imported(tree: ast.Module) -> dict[str, str]:
    """What a name in this module stands for: {"dt": "datetime", "now": "time.time"}."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({each.asname or each.name: each.name for each in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    return names


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    """`dt.datetime.now` as `datetime.datetime.now`; None for what is not of an imported module."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return f"{owner}.{node.attr}" if owner else None
    return None


def _is_global_random(name: str | None) -> bool:
    """A function of the module `random`, whose state the whole process shares."""
    return bool(name) and re.fullmatch(r"random\.[a-z]\w*", str(name)) is not None
