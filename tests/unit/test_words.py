"""Plain words as a test: how often prose and identifiers use words that make a reader stop.

The words stand for a thing that has a name of its own (the request, the worker, the queue): "who", "nobody" or "told"
about a request is a riddle. The test counts them in every docstring, comment, string and identifier of the product and
in the documents; it is an alarm, and does not replace reading.
"""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dispatcher", "functions", "gpu_worker", "headgate", "headgate_vllm", "infra", "benchmarks")
DOCUMENTS = ("*.md", "docs/*.md", "dispatcher/shard/*.md", "benchmarks/results/*.md")
STOPPERS = frozenset({"who", "whom", "whose", "whoever", "whomever", "nobody", "somebody", "anybody", "told"})
PER_THOUSAND_MAX = 0.3
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words_of(text: str) -> list[str]:
    """The words of prose or of an identifier, in lower case: `toldAt_ms` gives told, at, ms."""
    return [word.lower() for word in WORD.findall(text)]


def prose_of(source: str) -> Iterator[str]:
    """The words of a module's comments and strings, docstrings and messages among them."""
    for token in _tokens(source):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from words_of(token.string)


def identifiers_of(source: str) -> Iterator[str]:
    """The words of a module's identifiers, each identifier counted once."""
    names = {token.string for token in _tokens(source) if token.type == tokenize.NAME}
    for name in names - frozenset(keyword.kwlist):
        yield from words_of(name)


Counts = dict[str, Counter[str]]
"""By file: every word and how often it occurs."""


def count_prose(root: Path) -> Counts:
    counts = {_name(root, path): Counter(prose_of(path.read_text("utf-8"))) for path in _modules(root)}
    documents = (path for pattern in DOCUMENTS for path in sorted(root.glob(pattern)))
    return counts | {_name(root, path): Counter(words_of(path.read_text("utf-8"))) for path in documents}


def count_identifiers(root: Path) -> Counts:
    return {_name(root, path): Counter(identifiers_of(path.read_text("utf-8"))) for path in _modules(root)}


def stoppers(words: Counter[str]) -> int:
    return sum(words[word] for word in STOPPERS)


def rate(counts: Counts) -> float:
    """Stoppers per 1,000 words."""
    return 1000 * sum(map(stoppers, counts.values())) / sum(sum(words.values()) for words in counts.values())


@pytest.mark.parametrize("count", [count_prose, count_identifiers])
def test_words_are_plain(count: Callable[[Path], Counts]) -> None:
    counts = count(ROOT)
    assert len(counts) > 200, "the product's files were not found"
    worst = sorted(counts, key=lambda path: -stoppers(counts[path]))[:10]
    found = ", ".join(f"{path} {stoppers(counts[path])}" for path in worst if stoppers(counts[path]))
    assert rate(counts) < PER_THOUSAND_MAX, f"{rate(counts):.2f} per 1,000 words; most in: {found}"


PROSE = ('"""Tell whom it concerns."""', "# nobody waits", "raise E(f'somebody {x}')")
IDENTIFIERS = ("told_at = told_at", "class WhoIsNext: ...")


@pytest.mark.parametrize(
    ("read", "source"),
    [*((prose_of, source) for source in PROSE), *((identifiers_of, source) for source in IDENTIFIERS)],
)
def test_a_stopper_is_counted(read: Callable[[str], Iterator[str]], source: str) -> None:
    assert stoppers(Counter(read(source))) == 1


@pytest.mark.parametrize("read", [prose_of, identifiers_of])
def test_other_words_are_not_counted(read: Callable[[str], Iterator[str]]) -> None:
    assert stoppers(Counter(read('whole = "the request that waits"  # wholesale'))) == 0


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(source).readline)


def _modules(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from (path for path in sorted((root / package).rglob("*.py")) if "node_modules" not in path.parts)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
