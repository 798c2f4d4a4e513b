"""Measures of the house: `python -m tests.support.house [--root DIR] [--list MEASURE] [--json]`.

They count what a stranger has to hold in one head: files, names, rooms, circles, and names and docstrings that are read
twice. tests/unit/test_house.py holds some of them below a ceiling that only falls.

    files, lines            of the product's packages, without benchmarks
    public names            functions, classes and constants of modules. A name that another module imports counts as
                            public, whatever its first letter
    twin classes            class names that two or more classes have
    participles             functions that are named by a past participle: `sent`, `_answer_kept`. `kept_answers` (what
                            it returns), `is_kept` (a question) and `execute_detached` (a command) are none
    fragments               docstrings without a main clause in their first sentence ("Those that are ready."). For an
                            attribute "Whether it runs." is none
    largest folder          modules of the folder with most of them
    circles                 groups of modules that import each other, imports for types included
    one importer            modules below SMALL lines that one module imports, from the same folder
    test lines, inside      lines of tests/, and the part of them within test functions
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from asyncio import Protocol
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
PACKAGES = ("dispatcher", "functions", "gpu_worker", "headgate", "headgate_vllm", "infra")
NOT_OURS = {"node_modules"}
SMALL = 80
IRREGULAR = {
    "begun", "bound", "bought", "brought", "built", "done", "found", "given", "gone", "held", "kept", "known", "left",
    "lost", "made", "met", "paid", "said", "seen", "sent", "shown", "spent", "taken", "told", "thrown", "understood",
    "won", "written",
}  # fmt: skip
IMPERATIVES = {"need", "feed", "seed", "embed", "shed", "speed"}
"""Imperatives that end like a participle."""
COMMANDS = {
    "add", "await", "build", "check", "close", "count", "delete", "drop", "end", "execute", "find", "follow", "forget",
    "get", "give", "keep", "let", "list", "look", "make", "mark", "move", "note", "open", "print", "read", "refuse",
    "release", "remove", "return", "save", "send", "serve", "set", "show", "start", "stop", "store", "sum", "take",
    "try", "wait", "watch", "write",
}  # fmt: skip
PREDICATES = {"is", "has", "can", "may", "was", "were", "are", "had", "must", "on", "if", "until", "does", "needs"}
CLAUSES = {"how", "that", "those", "what", "where", "whether", "which", "who"}
"""A docstring that begins with one of these has no main clause. It may name the value of an attribute."""
PREPOSITIONS = {
    "after", "as", "at", "before", "besides", "by", "during", "for", "from", "in", "not", "of", "on", "only", "to",
    "until", "with", "without", "within",
}  # fmt: skip
FINITE = re.compile(
    r"\b(is|are|was|were|has|have|had|may|can|must|does|do|will|gets?|goes|go|holds?|takes?|gives?|ends?|begins?|"
    r"stays?|waits?|runs?|counts?|keeps?|becomes?|means?|needs?|knows?|comes?|falls?|returns?|raises?|reads?|writes?|"
    r"changes?|costs?|serves?|says?|sees?|makes?|lets?|leaves?|uses?|follows?|belongs?|fits?|asks?|sends?)\b"
)


@dataclass(frozen=True)
class Module:
    """A module of the product. `name`: with dots; a package's is that of its folder."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def folder(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


class House:
    def __init__(self, root: Path = ROOT) -> None:
        found = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
        paths = [path for path in found if not NOT_OURS & {*path.parts}]
        modules = (Module(path, _name(path.relative_to(root))) for path in paths)
        self.modules = {module.name: module for module in modules}
        self.tests = sorted((root / "tests").rglob("*.py"))

    @cached_property
    def imports(self) -> dict[str, set[tuple[str, str]]]:
        """By module: the modules of the product that it imports, each with the imported name ("": the module)."""
        return {name: set(self._imports(module)) for name, module in self.modules.items()}

    def _imports(self, module: Module) -> Iterator[tuple[str, str]]:
        for node in module.nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom) and node.module in self.modules and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield (inner, "") if inner in self.modules else (node.module, alias.name)

    def public_names(self) -> list[str]:
        imported = {each for names in self.imports.values() for each in names}
        found: list[str] = []
        for module in self.modules.values():
            for node in module.tree.body:
                for name in _defined(node):
                    if not name.startswith("_") or (module.name, name) in imported:
                        found.append(f"{module.name}.{name}")
        return found

    def twin_classes(self) -> list[str]:
        homes = defaultdict[str, list[str]](list)
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(module.name)
        return sorted(f"{name}: {', '.join(homes[name])}" for name in homes if len(homes[name]) > 1)

    def functions(self) -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield module, node

    def participles(self) -> list[str]:
        return [
            f"{module.name}:{node.lineno} {node.name}" for module, node in self.functions() if is_participle(node.name)
        ]

    def fragments(self) -> list[str]:
        return [
            f"{module.name}:{line} {text[:70]}"
            for module in self.modules.values()
            for line, text, is_value in _docstrings(module)
            if is_fragment(text, is_value=is_value)
        ]

    def folders(self) -> Counter[str]:
        return Counter(module.folder for module in self.modules.values() if module.path.name != "__init__.py")

    def circles(self) -> list[str]:
        graph = {name: {target for target, _ in names if target != name} for name, names in self.imports.items()}
        return [" ".join(sorted(each)) for each in _components(graph) if len(each) > 1]

    def with_one_importer(self) -> list[str]:
        importers = defaultdict[str, set[str]](set)
        for name, names in self.imports.items():
            for target, _ in names:
                importers[target].add(name)
        return [
            f"{module.name} ({module.lines}) <- {importer}"
            for module in self.modules.values()
            if module.path.name != "__init__.py" and module.lines < SMALL and len(importers[module.name]) == 1
            for importer in importers[module.name]
            if self.modules[importer].folder == module.folder
        ]

    def test_lines(self) -> tuple[int, int]:
        """Return the lines of the tests, and those of them within test functions."""
        whole = inside = 0
        for path in self.tests:
            text = path.read_text(encoding="utf-8")
            whole += text.count("\n")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                    inside += (node.end_lineno or node.lineno) - node.lineno + 1
        return whole, inside

    def table(self) -> dict[str, float]:
        """Return each measure by its name."""
        functions = sum(1 for _ in self.functions())
        tests, inside = self.test_lines()
        return {
            "files": len(self.modules),
            "lines": sum(module.lines for module in self.modules.values()),
            "public names": len(self.public_names()),
            "twin classes": len(self.twin_classes()),
            "functions": functions,
            "participles": len(self.participles()),
            "participles, % of functions": round(100 * len(self.participles()) / functions, 1),
            "fragments": len(self.fragments()),
            "largest folder": max(self.folders().values()),
            "folders above 15": sum(count > 15 for count in self.folders().values()),
            "circles": len(self.circles()),
            "one importer": len(self.with_one_importer()),
            "test lines": tests,
            "inside tests, %": round(100 * inside / tests, 1) if tests else 0.0,
        }


def is_participle(name: str) -> bool:
    words = name.strip("_").split("_")
    if name.startswith("__") or words[0] in PREDICATES or hasattr(Protocol, name):  # asyncio gives the name
        return False
    last = words[-1]
    if last in IMPERATIVES or (len(words) > 1 and words[0] in COMMANDS):
        return False
    return last in IRREGULAR or (last.endswith("ed") and len(last) > 4)


def _is_read(node: ast.AST) -> bool:
    """Return whether the function is a property: it reads as a noun."""
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(each, ast.Name) and each.id.endswith("property") for each in decorators)


def is_fragment(docstring: str, *, is_value: bool = False) -> bool:
    """Return whether the first sentence has no main clause. `is_value`: it is about an attribute or a property."""
    first = re.split(r"(?<=[.:;])\s", docstring.strip(), maxsplit=1)[0].lower()
    word = re.sub(r"[^a-z]", "", first.split(maxsplit=1)[0]) if first else ""
    if word in CLAUSES:
        return not is_value or word in {"that", "those", "which"}
    if word in {"by", "of"}:
        return True
    return word in PREPOSITIONS and FINITE.search(first) is None


def _docstrings(module: Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and the text of each docstring, and whether it is of an attribute or a property."""
    for node in module.nodes:
        body = getattr(node, "body", None)
        for place, each in enumerate(body if isinstance(body, list) else ()):
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                is_function = place == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                yield each.lineno, each.value.value, not is_function or _is_read(node)


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected parts of a graph (Tarjan), each node's targets being nodes."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = list[set[str]]()

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            part = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            found.append(part)

    for node in graph:
        if node not in order:
            visit(node)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.house", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="of another checkout")
    lists = ("names", "twins", "participles", "fragments", "folders", "circles", "importers")
    parser.add_argument("--list", choices=lists, help="print what is counted instead")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    given = parser.parse_args(arguments)
    house = House(given.root)
    if given.list:
        found: dict[str, Callable[[], list[str]]] = {
            "names": house.public_names, "twins": house.twin_classes, "participles": house.participles,
            "fragments": house.fragments, "circles": house.circles, "importers": house.with_one_importer,
            "folders": lambda: [f"{count:3} {name}" for name, count in house.folders().most_common()],
        }  # fmt: skip
        sys.stdout.write("".join(f"{line}\n" for line in found[given.list]()))
        return 0
    measures = house.table()
    if given.json:
        sys.stdout.write(json.dumps(measures) + "\n")
        return 0
    table = Table("measure", "count")
    for name, count in measures.items():
        table.add_row(name, f"{count:,}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
