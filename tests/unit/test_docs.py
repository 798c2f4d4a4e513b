"""The documents keep up with the code: each link leads somewhere, and each command that is shown exists."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from starlette.routing import Route

from docs.build import find_problems, list_pages, stage
from functions.http_api.app import make_app
from gpu_worker.service.options import parse_options
from headgate.cli import app

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/*.md", "dispatcher/shard/*.md", "benchmarks/results/*.md")
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
RESULTS = ROOT / "benchmarks" / "results"
"""The site has those to which a page leads."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MODULE = re.compile(r"`([\w/]+\.py)`")
NAMED = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
BETWEEN_COMMANDS = re.compile(r"&&|\|\||[;|]|\s#\s")


@dataclass(frozen=True)
class Found:
    """A link or a command, and the document that has it."""

    document: Path
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {self.text}"


def links(document: Path, text: str) -> Iterator[Found]:
    for target in LINK.findall(FENCE.sub("", text)):
        if "://" not in target:
            yield Found(document, target)


def commands(document: Path, text: str) -> Iterator[Found]:
    """The lines of code blocks, and the code in sentences, cut at && and the like."""
    blocks = [line for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    sentences = [" ".join(code.split()) for code in INLINE.findall(FENCE.sub("", text))]
    for line in [*blocks, *sentences]:
        for part in BETWEEN_COMMANDS.split(line):
            yield Found(document, part.strip().removeprefix("$ "))


def broken_link(found: Found) -> str | None:
    path, _, anchor = found.text.partition("#")
    target = (found.document.parent / path).resolve() if path else found.document
    if not target.exists():
        return "no such file"
    if anchor and anchor not in anchors(target.read_text("utf-8")):
        return "no such heading"
    return None


def anchors(text: str) -> set[str]:
    return {anchor_of(heading) for heading in HEADING.findall(text)} | set(NAMED.findall(text))


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_command(found: Found) -> str | None:
    words = _words(found.text)
    if words[:1] == ["make"] and len(words) > 1:
        return _broken_make(words[1:])
    if words[:1] == ["headgate"] and len(words) > 1:
        return _broken_headgate(words[1:])
    if words[:3] == ["python", "-m", "gpu_worker"]:
        return _unknown(words[3:], _worker_options())
    return None


def _broken_make(words: list[str]) -> str | None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    return next((f"make has no target {word}" for word in asked if word not in targets), None)


def _broken_headgate(words: list[str]) -> str | None:
    command: Any = typer.main.get_command(app)
    options: set[str] = {"--help"}
    while words and hasattr(command, "get_command"):
        options |= _options(command)
        if words[0].startswith("-"):
            break
        command, name = command.get_command(None, words[0]), words[0]
        if command is None:
            return f"headgate has no command {name}"
        words = words[1:]
        options |= _options(command)
    return _unknown(words, options)


@cache
def _worker_options() -> frozenset[str]:
    """The options that the worker's help shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        parse_options(["--help"])
    return frozenset(re.findall(r"--[a-z-]+", shown.getvalue()))


def _options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def _unknown(words: list[str], options: Any) -> str | None:
    """The first option that does not exist. What follows `--` is for another program."""
    before = words[: words.index("--")] if "--" in words else words
    names = [word.partition("=")[0] for word in before if word.startswith("--")]
    return next((f"no option {name}" for name in names if name not in options), None)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


TEXTS = [(document, document.read_text("utf-8")) for document in DOCUMENTS]


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    found = [link for document, text in TEXTS for link in links(document, text)]
    assert len(found) > 50
    assert {str(link): reason for link in found if (reason := broken_link(link))} == {}


def test_every_command_exists_with_its_options() -> None:
    found = [command for document, text in TEXTS for command in commands(document, text)]
    shown = [command for command in found if command.text.startswith(("headgate ", "make ", "python -m gpu_worker"))]
    assert len(shown) > 50
    assert {str(command): reason for command in shown if (reason := broken_command(command))} == {}


def test_every_file_that_a_page_names_exists() -> None:
    """A path may begin at any folder: `shard/steps.py`. What is history may name what is gone."""
    folders = ("benchmarks", "dispatcher", "functions", "gpu_worker", "headgate", "headgate_vllm", "infra", "packages")
    packages = (ROOT / name for name in (*folders, "tests"))
    files = [f"/{path.relative_to(ROOT).as_posix()}" for package in packages for path in package.rglob("*.py")]
    history = {ROOT / "CHANGELOG.md"} | {document for document in DOCUMENTS if document.parent == RESULTS}
    named = {
        (document.name, name)
        for document, text in TEXTS if document not in history
        for name in MODULE.findall(text)
    }  # fmt: skip
    assert len(named) > 50
    assert {each for each in named if not any(file.endswith(f"/{each[1]}") for file in files)} == set()


def test_the_readme_counts_the_claims_of_the_evidence() -> None:
    sections = json.loads((ROOT / "docs" / "evidence" / "claims.json").read_text("utf-8")).values()
    held = Counter(check["held"] for section in sections for check in section["checks"])
    assert f"{held[True]} claims hold, {held[False]} fail for reasons" in (ROOT / "README.md").read_text("utf-8")
    assert not held[None]


def test_the_guides_have_every_route() -> None:
    paths = [route.path for route in make_app().routes if isinstance(route, Route)]
    assert "/v1/chat/completions" in paths
    for path in paths:
        reader = "watching" if path.startswith("/operator") else "tenants"
        guide = (ROOT / "docs" / f"{reader}.md").read_text("utf-8")
        assert path.partition("{")[0].rstrip("/") in guide, path


@pytest.mark.parametrize(
    "text",
    ["[a](nowhere.md)", "[a](docs/gate.md#no-such-heading)", "[a](#no-such-heading)"],
)
def test_a_broken_link_is_found(text: str) -> None:
    (link,) = links(ROOT / "README.md", text)
    assert broken_link(link)


@pytest.mark.parametrize(
    "text",
    [
        "`headgate nothing`",
        "`headgate serve --nothing 3`",
        "```\n$ headgate tenants create a --nothing\n```",
        "```\nmake install && headgate local nothing\n```",
        "`make nothing`",
        "`python -m gpu_worker --nothing`",
    ],
)
def test_a_broken_command_is_found(text: str) -> None:
    assert any(broken_command(command) for command in commands(ROOT / "README.md", text))


@pytest.mark.parametrize(
    "text",
    [
        "```\nheadgate serve \\\n  --engine modelled   # --nothing here\n```",
        "`headgate local stop --home DIR`",
        "`headgate tenants create a --weight=2 --data d | cat --nothing`",
        '`make bench BENCH_ARGS="a --nothing"`',
    ],
)
def test_a_sound_command_passes(text: str) -> None:
    assert not [command for command in commands(ROOT / "README.md", text) if broken_command(command)]


def test_a_block_in_a_list_is_indented_by_four_spaces() -> None:
    """With fewer it belongs to the item on GitHub, and not on the site."""
    blocks = re.compile(r"\n\n {1,3}(?=\S).*")
    assert {document.name: found for document, text in TEXTS if (found := blocks.findall(FENCE.sub("", text)))} == {}


def test_the_site_has_every_page_of_the_documentation() -> None:
    pages = set(list_pages())
    assert {path.relative_to(ROOT).as_posix() for path in DOCUMENTS if path.parent != RESULTS} - pages == set()


def test_the_site_has_the_files_to_which_its_pages_lead(tmp_path: Path) -> None:
    stage(tmp_path)
    assert (tmp_path / "docs" / "operator-page.png").is_file()
    assert (tmp_path / "examples" / "tenants.yaml").is_file()
    assert list(tmp_path.glob("benchmarks/results/*.md"))


@pytest.mark.parametrize(
    "html",
    [
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link rel="preconnect" href="//fonts.example">',
        '<script src="https://cdn.example/a.js"></script>',
        '<img src="http://host.example/a.png" alt="">',
        '<pre class="mermaid"><code>graph TD</code></pre>',
        '<a href="nowhere.yaml">a</a>',
        '<a href="/nowhere/">a</a>',
        '<img src="nowhere.png" alt="">',
    ],
)
def test_a_problem_of_the_built_site_is_found(tmp_path: Path, html: str) -> None:
    (tmp_path / "index.html").write_text(html)
    assert len(list(find_problems(tmp_path))) == 1


def test_a_style_sheet_that_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import url('https://fonts.example/css'); p { background: url(a.png) }")
    assert len(list(find_problems(tmp_path))) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://host.example/">a</a><link rel="canonical" href="https://host.example/">',
        '<a href="page/#heading">a</a><a href="#here">a</a><a href="mailto:a@host.example">a</a>',
        '<img src="data:image/png;base64,AAAA" alt=""><script>let a = "https://host.example";</script>',
        '<script src="/a.js?v=1"></script>',
    ],
)
def test_a_sound_page_of_the_site_passes(tmp_path: Path, html: str) -> None:
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("")
    (tmp_path / "a.js").write_text("")
    assert list(find_problems(tmp_path)) == []
