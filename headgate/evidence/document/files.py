"""docs/evidence.md and its plots, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.evidence.document import markdown
from headgate.evidence.document.sections import Section
from headgate.simulator.report.drawing import svg

DOCUMENT = "evidence.md"


def write(folder: Path, sections: Mapping[str, Section]) -> list[Path]:
    """The files written, the document first. Plots of experiments that are no more are removed. Raises OSError, and
    ValueError where two plots have one name."""
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
        _write(path, text)
    for stale in set(drawn.glob("*.svg")) - files.keys():
        stale.unlink()
    return list(files)


def _write(path: Path, text: str) -> None:
    """Whoever reads sees the old file or the new one."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
