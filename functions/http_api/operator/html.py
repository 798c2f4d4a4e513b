"""Builds HTML as a tree of the standard library's elements, which escape every text and attribute when written.

Beside that it holds the pages' style sheet, and the policy that lets a browser use it and nothing else: no script, no
other source.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

Child = Element | str

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1a1a1a; --quiet: #555555; --line: #c8c8c8;
  --accent: #0b57a4; --bad: #a61b1b; --head: #f2f4f7; }
@media (prefers-color-scheme: dark) { :root { --back: #14161a; --text: #e6e6e6; --quiet: #a9adb5; --line: #40454e;
  --accent: #7ab7ff; --bad: #ff8f8f; --head: #1f232a; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto;
  max-width: 76rem; padding: 1rem; }
header, .bar-of-page { align-items: baseline; display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
a { color: var(--accent); } p { margin: .4rem 0; }
.quiet, caption, dt { color: var(--quiet); }
caption { font-size: .85rem; padding-bottom: .2rem; text-align: left; }
.problem { border: 2px solid var(--bad); border-radius: .3rem; margin: .8rem 0; padding: .4rem .8rem; }
.bad { color: var(--bad); font-weight: 600; }
dl { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); margin: 1rem 0; }
dl div { background: var(--head); border-radius: .3rem; padding: .4rem .7rem; }
dd { font-size: 1.1rem; font-variant-numeric: tabular-nums; margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: middle;
  white-space: nowrap; }
thead th { background: var(--head); font-weight: 600; }
tbody th { font-weight: 600; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
.bar { fill: var(--accent); } .now { fill-opacity: .55; }
.level { stroke: var(--bad); stroke-dasharray: 3 2; stroke-width: 1.5; }
input, button { background: var(--back); border: 1px solid var(--quiet); border-radius: .3rem; color: var(--text);
  font: inherit; padding: .25rem .6rem; }
form { display: inline-flex; flex-wrap: wrap; gap: .4rem; }
"""

_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def element(tag: str, /, *children: Child, **attributes: str) -> Element:
    """Return an element. An attribute's name ends with _ if it is a word of Python, and has _ for each hyphen."""
    made = Element(tag, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + child
        else:
            last.tail = (last.tail or "") + child
    return made


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[Child]], *, empty: str, text: int = 1
) -> Element:
    """Return a table that scrolls sideways if the screen is narrow, or the sentence `empty` if it has no row.

    The first cell of a row is its heading. The first `text` columns are text, the others numbers.
    """
    lines = [_row(cells, text) for cells in rows]
    if not lines:
        return element("p", empty)
    heads = [element("th", each, scope="col", class_=_kind(number, text)) for number, each in enumerate(columns)]
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
    )
    return element("div", made, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _row(cells: Sequence[Child], text: int) -> Element:
    first, *others = cells
    cells_after = [element("td", each, class_=_kind(number, text)) for number, each in enumerate(others, 1)]
    return element("tr", element("th", first, scope="row", class_="text"), *cells_after)


def _kind(column: int, text: int) -> str:
    return "text" if column < text else "number"


def written(root: Element) -> bytes:
    """Return the document. Characters beyond ASCII are written as references, so no text can fail to be encoded."""
    html: bytes = tostring(root, encoding="us-ascii", method="html")
    return b"<!doctype html>\n" + html
