"""Build the documentation as a site: `make docs` runs `python -m docs.build` where zensical is installed.

The pages keep their folders, so a link that works in the repository works on the site. zensical's strict mode fails at
a link to a page or a heading that does not exist; what it does not look at is checked here, in the HTML that it wrote.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dispatcher.fields.page import write_tables

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "docs" / "zensical.toml"
BUILT = ROOT / "build" / "docs"
SITE = BUILT / "site"
FIELDS = Path("docs/fields.md")
FIELDS_MARK = "<!-- The tables stand here on the site. -->\n"
"""The line of FIELDS that the generated tables replace."""
LINK = re.compile(r"\]\(([^)\s#]+)")
LOADING = {
    "link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "object": "data", "embed": "src",
}  # fmt: skip
"""Elements that make a browser load something, and the attribute that says from where."""
ICONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "prefetch", "manifest"}
"""The kinds of `link` that make a browser connect to a host. Others, such as `canonical`, only name an address."""
LOADED_BY_CSS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
DIAGRAM = re.compile(r"""class=["'][^"']*\bmermaid\b""")
"""zensical's script loads a library from another host for a page with such an element."""


def main() -> int:
    stage(BUILT / "pages")
    shutil.copy(CONFIG, BUILT / CONFIG.name)
    command = ["zensical", "build", "--strict", "--clean", "--config-file", str(BUILT / CONFIG.name)]
    command[0] = str(Path(sys.executable).with_name("zensical"))
    if subprocess.run(command, check=False).returncode:  # noqa: S603
        return 1
    problems = list(find_problems(SITE))
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.stderr.write(f"{SITE.relative_to(ROOT)}: {len(problems)} problems\n")
    return 1 if problems else 0


def stage(target: Path) -> None:
    """Copy the pages of the site, and every file that a page links to, into `target`."""
    shutil.rmtree(target, ignore_errors=True)
    waiting, found = [ROOT / page for page in list_pages()], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        copy = target / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix != ".md":
            shutil.copy(file, copy)
            continue
        text = read_page(file)
        copy.write_text(text, "utf-8")
        waiting += [linked for linked in find_linked(file, text) if linked.is_relative_to(ROOT)]


def list_pages() -> list[str]:
    """Return the pages that the site's navigation names, as paths from the project's root."""
    return list(_strings(tomllib.loads(CONFIG.read_text("utf-8"))["project"]["nav"]))


def _strings(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for each in nav.values():
            yield from _strings(each)
    elif isinstance(nav, list):
        for each in nav:
            yield from _strings(each)


def read_page(file: Path) -> str:
    text = file.read_text("utf-8")
    return text.replace(FIELDS_MARK, write_tables()) if file == ROOT / FIELDS else text


def find_linked(file: Path, text: str) -> Iterator[Path]:
    """Yield the files to which the links of a page lead, also those that do not exist."""
    for target in LINK.findall(text):
        if not urlsplit(target).scheme:
            yield (file.parent / target).resolve()


def find_problems(site: Path) -> Iterator[str]:
    """Yield what a page of the site loads from another host, and its links to files that the site does not have."""
    for sheet in sorted(site.rglob("*.css")):
        for target in LOADED_BY_CSS.findall(sheet.read_text("utf-8")):
            yield f"{sheet.relative_to(site)}: {target}: loaded from another host"
    for page in sorted(site.rglob("*.html")):
        text = page.read_text("utf-8")
        if DIAGRAM.search(text):
            yield f"{page.relative_to(site)}: a diagram whose library comes from another host"
        for element, target in _Links.read(text):
            if problem := _problem(site, page, element, target):
                yield f"{page.relative_to(site)}: {element}: {target}: {problem}"


def _problem(site: Path, page: Path, element: str, target: str) -> str | None:
    parts = urlsplit(target)
    if parts.scheme in ("http", "https") or parts.netloc:
        return "loaded from another host" if element != "a" else None
    if parts.scheme or not parts.path:
        return None
    folder = site if parts.path.startswith("/") else page.parent
    file = folder / unquote(parts.path).lstrip("/")
    return None if file.is_file() or (file / "index.html").is_file() else "no such file"


class _Links(HTMLParser):
    """The elements of a page that lead or load, each with its target."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    @classmethod
    def read(cls, text: str) -> list[tuple[str, str]]:
        parser = cls()
        parser.feed(text)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and not ICONS & set((values.get("rel") or "").split()):
            return
        target = values.get("href" if tag == "a" else LOADING.get(tag, ""))
        if target:
            self.found.append((tag, target))


if __name__ == "__main__":
    sys.exit(main())
