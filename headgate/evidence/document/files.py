"""Writing docs/evidence.md and its plots. A reader sees the old file or the new one, never a part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.evidence.document import markdown
from headgate.evidence.document.sections import Section
from headgate.simulator.report.drawing import Plot, svg

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
            path = _plot_path(folder, plot)
            if path in files:
                raise ValueError(f"there are two plots of the name {plot.name!r}")
            files[path] = svg(plot)
    for path, text in files.items():
        _replace(path, text)
    for stale in set(drawn.glob("*.svg")) - files.keys():
        stale.unlink()
    return list(files)


def differing(folder: Path, sections: Mapping[str, Section]) -> list[str]:
    """Return the names of the experiments that the document in `folder` shows otherwise, or not at all.

    Skipped experiments are not compared. Raises OSError if there is no document.
    """
    shown = (folder / DOCUMENT).read_text(encoding="utf-8")
    found = {name: section for name, section in sections.items() if section.skipped is None}
    return [name for name, section in found.items() if not _shows(folder, shown, name, section)]


def _shows(folder: Path, shown: str, name: str, section: Section) -> bool:
    """Return whether the document has the section's text as a whole, and the folder all of its plots."""
    texts = (markdown.section(name, section), markdown.contents_row(name, section))
    if not all(f"\n{text}" in shown for text in texts):
        return False
    paths = [(_plot_path(folder, plot), plot) for plot in section.plots]
    return all(path.is_file() and path.read_text(encoding="utf-8") == svg(plot) for path, plot in paths)


def _plot_path(folder: Path, plot: Plot) -> Path:
    return folder / markdown.PLOTS_FOLDER / f"{plot.name}.svg"


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
