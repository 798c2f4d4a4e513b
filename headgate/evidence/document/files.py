"""Writing docs/evidence.md and its plots. A reader sees the old file or the new one, never a part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.evidence.document import markdown
from headgate.evidence.document.sections import Section
from headgate.simulator.report.drawing import svg

DOCUMENT = "evidence.md"


def write(folder: Path, sections: Mapping[str, Section]) -> list[Path]:
    """Write the document and its plots, and delete plots that no experiment draws any more.

    Returns the written files, the document first. Raises OSError, and ValueError if two plots have one name.
    """
    drawn = folder / markdown.PLOTS_FOLDER
    drawn.mkdir(parents=True, exist_ok=True)
    files = {folder / DOCUMENT: markdown.document(sections)}
    for section in sections.values():
        for plot in section.plots:
            path = drawn / f"{plot.name}.svg"
            if path in files:
                raise ValueError(f"there are two plots of the name {plot.name!r}")
            files[path] = svg(plot)
    for path, text in files.items():
        _replace(path, text)
    for stale in set(drawn.glob("*.svg")) - files.keys():
        stale.unlink()
    return list(files)


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
