"""The code that a row of the matrix was played with, as digests: a row is stale by itself after a change of this code.

An experiment's code is each file of the product in which a function ran while the experiment was played unbroken, and
each file from which these import a constant or that has no function. Docstrings, comments and empty lines do not count.
What runs only under a mutant is not among them, nor are the traces. The digest of a row covers the files of its
experiment, the smaller runs (fewer.py) and their seeds, and the definition of its mutant.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from cProfile import Profile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeGuard, TypeVar

from benchmarks.evidence_mutants.seeds import seeds_of

ROOT = Path(__file__).parents[2]
_PRODUCT = ("dispatcher", "gpu_worker", "headgate")
_FEWER = "benchmarks/evidence_mutants/fewer.py"
_MUTANTS = Path(__file__).parent / "mutants.py"
_DIGITS = 8
R = TypeVar("R")


class Code(NamedTuple):
    """Of an experiment: the digests of its `files` when it was last played unbroken, and of each of its `rows`."""

    files: dict[str, str]
    rows: dict[str, str]


class Codes(NamedTuple):
    """The code of every experiment, in a file of JSON."""

    by_experiment: dict[str, Code]

    @classmethod
    def read(cls, path: Path) -> Codes:
        kept = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return cls({name: Code(code["files"], code["rows"]) for name, code in kept.items()})

    def write(self, path: Path) -> None:
        kept = {name: code._asdict() for name, code in self.by_experiment.items()}
        path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")

    def record(self, experiment: str, mutant: str, files: Mapping[str, str]) -> None:
        """Record that a row was played. `files`: the digests of an unbroken play, which comes before its mutants."""
        before = self.by_experiment.get(experiment, Code({}, {}))
        code = Code(before.files if mutant else dict(files), before.rows)
        code.rows[mutant] = _digest_row(code.files, experiment, mutant)
        self.by_experiment[experiment] = code

    def is_stale(self, experiment: str, mutant: str) -> bool:
        """Return whether the code of a row has changed since it was played, or is not known."""
        code = self.by_experiment.get(experiment)
        if code is None or mutant not in code.rows:
            return True
        today = {name: digest_file(ROOT / name) for name in code.files}
        return code.rows[mutant] != _digest_row(today, experiment, mutant)

    def find_changed_files(self, experiment: str) -> list[str]:
        """Return the files that have changed since the experiment was last played unbroken."""
        code = self.by_experiment.get(experiment, Code({}, {}))
        return [name for name, digest in code.files.items() if digest_file(ROOT / name) != digest]


def play_recorded(play: Callable[[], R]) -> tuple[R, dict[str, str]]:
    """Return what `play` returns, and the digests of the files that it ran through, with those of their constants."""
    profile = Profile(subcalls=False, builtins=False)
    result = profile.runcall(play)
    ran = {Path(entry.code.co_filename) for entry in profile.getstats() if not isinstance(entry.code, str)}
    files = {path for path in ran if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in _PRODUCT}
    names = [*sorted(str(path.relative_to(ROOT)) for path in _with_constants(files)), _FEWER]
    return result, {name: digest_file(ROOT / name) for name in names}


def _with_constants(files: Iterable[Path]) -> set[Path]:
    found, waiting = set(), list(files)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _constants_of(path)
    return found


def _constants_of(path: Path) -> Iterator[Path]:
    """Yield the files from which a file imports a constant, and those that have no function."""
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _PRODUCT:
            for alias in node.names:
                target = _find_module(f"{node.module}.{alias.name}") or _find_module(node.module)
                if target is not None and (alias.name.isupper() or not _has_functions(target)):
                    yield target


def _find_module(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@cache
def _has_functions(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(_parse(path)))


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def digest_file(path: Path) -> str:
    """Return the digest of a file's code without docstrings, comments and empty lines; "" if there is no such file."""
    return _digest(_code_of(path.read_text("utf-8"))) if path.is_file() else ""


def _code_of(text: str) -> str:
    """Return the lines of code. Not `ast.dump` or `ast.unparse`: these differ between versions of Python."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if _is_text(node):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def _digest_row(files: Mapping[str, str], experiment: str, mutant: str) -> str:
    definition = digest_mutant(mutant) if mutant else ""
    return _digest(json.dumps([sorted(files.items()), seeds_of(experiment), definition]))


# ── A mutant's definition ────────────────────────────────────────────────────────────────────────────────────────────


@cache
def digest_mutant(name: str) -> str:
    """Return the digest of what a mutant changes: its entry in mutants.py, and the functions there that it names. Its
    text and its list of experiments do not count."""
    text = _MUTANTS.read_text("utf-8")
    tree = ast.parse(text)
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    waiting: list[ast.AST] = [*_changes_of(tree, name)]
    found = []
    while waiting:
        node = waiting.pop(0)
        found.append(" ".join((ast.get_source_segment(text, node) or "").split()))
        named = dict.fromkeys(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        waiting += [defined.pop(each) for each in named if each in defined]
    return _digest(json.dumps(found, ensure_ascii=False))


def _changes_of(tree: ast.Module, name: str) -> list[ast.expr]:
    """Return the arguments of a mutant's entry after its text and its experiments. Raises KeyError without one."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name and isinstance(value, ast.Call):
                    return value.args[2:]
    raise KeyError(name)
