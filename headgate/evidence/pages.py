"""docs/evidence.md and its plots, as a whole and experiment by experiment.

Beside the page lies evidence/claims.json: every claim with its verdict. From it the first page and the list of
experiments are made again when only some experiments ran. A reader of a file sees the old one or the new one, never a
part.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from headgate.evidence.coverage import render_coverage
from headgate.evidence.document import (
    EXPERIMENTS,
    PLOTS_FOLDER,
    Cell,
    Check,
    Markdown,
    Section,
    Table,
    render_section,
    render_table,
)
from headgate.evidence.overview import render_overview
from headgate.simulator.report.drawing import Plot, svg

DOCUMENT = "evidence.md"
_CLAIMS = f"{PLOTS_FOLDER}/claims.json"
_INTRODUCTION = """\
# Evidence

What the papers claim, what their authors measured, and what headgate's own policies do in the simulator. The command
`headgate reproduce` runs every experiment on this page and writes this page; `--only NAME --update docs` renews one.
`--check` fails if a claim fails without a reason that stands here. The command always writes the same bytes: nothing on
this page depends on the machine.

In the tables, *paper* is the printed figure, *measured* is computed from the authors' logs, and *ours* is the
simulator. 256/256 stands for requests of 256 input and 256 output tokens. Service is counted in units: 1 for an input
token, 2 for an output token, if the section does not give another unit.

✔ the claim holds within its stated tolerance · ✘ it does not hold · – reported without a verdict; the text says why
"""
_ANCHOR = re.compile(r'^<a id="([a-z0-9-]+)"></a>$', re.MULTILINE)
_COVERAGE = "coverage"


def render_document(sections: Mapping[str, Section]) -> str:
    """Return the whole document; `sections` by the names of their experiments, in order."""
    return _join(sections, {name: render_section(name, found) for name, found in sections.items()})


def _join(claims: Mapping[str, Section], texts: Mapping[str, str]) -> str:
    return "\n".join([_head(claims), *texts.values(), render_coverage(claims)])


def _head(claims: Mapping[str, Section]) -> str:
    """Return all before the first experiment."""
    rows = [_contents_row(name, found) for name, found in claims.items()]
    contents = render_table(Table("", ("experiment", "what", "source", "✔", "✘", "–"), rows))
    return "\n".join([_INTRODUCTION, render_overview(claims), "## Experiments\n", contents])


def _contents_row(name: str, found: Section) -> tuple[Cell, ...]:
    held = Counter(check.held for check in found.checks)
    counts = ("skipped", "", "") if found.skipped is not None else (held[True], held[False], held[None])
    return (Markdown(f"[{name}](#{name})"), found.title, found.source, *counts)


def write(folder: Path, sections: Mapping[str, Section]) -> list[Path]:
    """Write the document and its plots, and delete plots that no experiment draws any more.

    Returns the written files, the document first. Raises OSError, and ValueError if two plots have one name.
    """
    return _write(folder, sections, {name: render_section(name, found) for name, found in sections.items()}, sections)


def update(folder: Path, sections: Mapping[str, Section]) -> list[Path]:
    """Put these experiments into the document of the folder in place of what it shows of them; keep all others.

    Experiments that no longer exist go. Returns the written files. Raises OSError if there is no document.
    """
    shown = (folder / DOCUMENT).read_text(encoding="utf-8")
    texts = _texts(shown) | {name: render_section(name, found) for name, found in sections.items()}
    claims = {**_read_claims(folder), **sections}
    order = [name for name in EXPERIMENTS if name in claims and name in texts]
    return _write(
        folder, {name: claims[name] for name in order}, {name: texts[name] for name in order}, sections, keep=True
    )


def _texts(document: str) -> dict[str, str]:
    """Return each experiment's part of a document."""
    found = list(_ANCHOR.finditer(document))
    ends = [match.start() for match in found[1:]] + [len(document)]
    parts = {match[1]: document[match.start() : end].rstrip("\n") for match, end in zip(found, ends, strict=True)}
    parts.pop(_COVERAGE, None)
    return {name: f"{part}\n" for name, part in parts.items() if name in EXPERIMENTS}


def _write(
    folder: Path,
    claims: Mapping[str, Section],
    texts: Mapping[str, str],
    drawn: Mapping[str, Section],
    *,
    keep: bool = False,
) -> list[Path]:
    plots = folder / PLOTS_FOLDER
    plots.mkdir(parents=True, exist_ok=True)
    document = _join(claims, texts)
    files = {folder / DOCUMENT: document, folder / _CLAIMS: _render_claims(claims)}
    for section in drawn.values():
        for plot in section.plots:
            path = _plot_path(folder, plot)
            if path in files:
                raise ValueError(f"there are two plots of the name {plot.name!r}")
            files[path] = svg(plot)
    for path, text in files.items():
        _replace(path, text)
    for stale in set(plots.glob("*.svg")) - files.keys():
        if not keep or f"]({PLOTS_FOLDER}/{stale.name})" not in document:
            stale.unlink()
    return list(files)


def differing(folder: Path, sections: Mapping[str, Section]) -> list[str]:
    """Return the names of the experiments that the document in `folder` shows otherwise, or not at all.

    Skipped experiments are not compared. `overview` stands for the first page and the list of experiments. Raises
    OSError if there is no document.
    """
    shown = (folder / DOCUMENT).read_text(encoding="utf-8")
    found = {name: section for name, section in sections.items() if section.skipped is None}
    names = [name for name, section in found.items() if not _shows(folder, shown, name, section)]
    kept = _read_claims(folder)
    if not shown.startswith(_head({name: found.get(name, of_name) for name, of_name in kept.items()})):
        names.append("overview")
    return names


def _shows(folder: Path, shown: str, name: str, section: Section) -> bool:
    """Return whether the document has the section's text as a whole, and the folder all of its plots."""
    if f"\n{render_section(name, section)}" not in shown:
        return False
    paths = [(_plot_path(folder, plot), plot) for plot in section.plots]
    return all(path.is_file() and path.read_text(encoding="utf-8") == svg(plot) for path, plot in paths)


def _render_claims(claims: Mapping[str, Section]) -> str:
    kept = {
        name: {
            "title": found.title,
            "source": found.source,
            "skipped": found.skipped,
            "checks": [_fields(check) for check in found.checks],
        }
        for name, found in claims.items()
    }
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def _fields(check: Check) -> dict[str, object]:
    """Return a claim's fields without those that have their default."""
    return {key: value for key, value in asdict(check).items() if key == "held" or value not in (None, "")}


def _read_claims(folder: Path) -> dict[str, Section]:
    """Return the claims beside a document, without the experiments' texts and tables."""
    kept = json.loads((folder / _CLAIMS).read_text(encoding="utf-8"))
    return {
        name: Section(
            found["title"],
            found["source"],
            checks=[Check(**check) for check in found["checks"]],
            skipped=found["skipped"],
        )
        for name, found in kept.items()
    }


def _plot_path(folder: Path, plot: Plot) -> Path:
    return folder / PLOTS_FOLDER / f"{plot.name}.svg"


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
