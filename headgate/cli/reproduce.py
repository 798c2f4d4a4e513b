"""`headgate reproduce`: the papers' tables and figures, and what the project's own policies make of them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from dispatcher.model.errors import ConfigurationError
from headgate.cli.progress import progress
from headgate.evidence.document import files as document
from headgate.evidence.document.sections import Section, Setting
from headgate.evidence.registry import EXPERIMENTS
from headgate.simulator.parallel import Processes
from headgate.simulator.report.drawing import check_installed

TRACES = Path("../shared/traces")
DOCS = Path("docs")
MARKS = {True: "[green]✔[/]", False: "[red]✘[/]", None: "–"}
OUT = "Folder of the document and its plots; without --only docs/. With --only nothing is written unless it is named."


def reproduce(
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 where a claim does not hold.")] = False,
    only: Annotated[str, typer.Option(help="Experiments, with commas; see --list.")] = "",
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    traces: Annotated[
        Path, typer.Option(help="Folder with vtc/ and azure/; without it their parts are left out.")
    ] = TRACES,
    seeds: Annotated[
        int, typer.Option(help="Runs of each experiment whose steps are jittered.", min=1, max=10_000)
    ] = 20,
    processes: Annotated[int | None, typer.Option(help="At once; one a core where it is not said.", min=1)] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name the experiments and stop.")] = False,
) -> None:
    """Run every experiment, write docs/evidence.md, and say which claims hold: always the same bytes."""
    if list_:
        sys.stdout.write("".join(f"{name}\n" for name in EXPERIMENTS))
        return
    names = _names(only)
    folder = out if out is not None else None if only else DOCS
    if folder is not None:
        _folder(folder)
    sections = _sections(names, traces if traces.is_dir() else None, seeds, processes)
    if folder is not None:
        document.write(folder, sections)
    failed = _verdict(sections)
    raise typer.Exit(1 if check and failed else 0)


def _names(only: str) -> list[str]:
    """In the order of the document. Raises ConfigurationError."""
    asked = [name.strip() for name in only.split(",") if name.strip()]
    for name in asked:
        if name not in EXPERIMENTS:
            raise ConfigurationError(f"unknown experiment {name[:80]!r}; there are {', '.join(EXPERIMENTS)}")
    return [name for name in EXPERIMENTS if not asked or name in asked]


def _folder(folder: Path) -> None:
    """Found out before hours of work."""
    check_installed()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".headgate-reproduce"
    probe.touch()
    probe.unlink()


def _sections(names: list[str], traces: Path | None, seeds: int, processes: int | None) -> dict[str, Section]:
    sections = {}
    with Processes(processes) as pool:
        for number, name in enumerate(names, 1):
            with progress(f"{name} ({number} of {len(names)})") as shown:
                pool.on_done = shown
                sections[name] = EXPERIMENTS[name](Setting(pool.map, traces, seeds))
    return sections


def _verdict(sections: dict[str, Section]) -> int:
    """Say each claim, and whether it holds. Returns how many do not."""
    console = Console(highlight=False, soft_wrap=True)
    for name, section in sections.items():
        console.print(f"[bold]{name}[/]: {escape(section.title)}")
        if section.skipped is not None:
            console.print(f"  – skipped: {escape(section.skipped)}")
        for check in section.checks:
            console.print(f"  {MARKS[check.held]} {escape(check.claim)}: {escape(check.said)}")
    held = Counter(check.held for section in sections.values() for check in section.checks)
    skipped = sum(section.skipped is not None for section in sections.values())
    console.print(
        f"{held[True]} claims hold, {held[False]} do not, {held[None]} are reported without a verdict; "
        f"{skipped} of {len(sections)} experiments were skipped."
    )
    return held[False]
