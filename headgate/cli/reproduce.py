"""`headgate reproduce` makes the tables and figures of the papers again, with the project's own policies."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from dispatcher.model.errors import ConfigurationError
from headgate.cli.terminal.output import progress
from headgate.evidence import pages
from headgate.evidence.document import Section, Setting
from headgate.evidence.registry import EXPERIMENTS
from headgate.simulator.parallel import Processes
from headgate.simulator.report.drawing import check_installed

_TRACES = Path("../shared/traces")
_DOCS = Path("docs")
_TRACES_HELP = (
    f"Folder with vtc/ and azure/. Default: {_TRACES}; if that is not there, the experiments that need it are skipped."
)
_MARKS = {True: "[green]✔[/]", False: "[red]✘[/]", None: "–"}
_COMPARE = "Exit with 1 if the document in this folder, such as docs, shows another result of an experiment that ran."
_UPDATE = "Renew the experiments that ran in the document of this folder, such as docs, and keep all others."
_OUT = "Folder for the document and its plots. Default: docs/; with --only, --without or --compare none."


def reproduce(
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a claim fails without a known reason.")
    ] = False,
    compare: Annotated[Path | None, typer.Option(help=_COMPARE)] = None,
    only: Annotated[str, typer.Option(help="Experiments, separated by commas; see --list.")] = "",
    without: Annotated[str, typer.Option(help="Experiments that are left out, separated by commas.")] = "",
    update: Annotated[Path | None, typer.Option(help=_UPDATE)] = None,
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    traces: Annotated[Path | None, typer.Option(help=_TRACES_HELP)] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each experiment with jittered steps.", min=1, max=10_000)] = 20,
    processes: Annotated[int | None, typer.Option(help="Parallel processes (default: CPU count).", min=1)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the names of the experiments.")] = False,
) -> None:
    """Run every experiment, write docs/evidence.md, and print which claims hold. The output is always the same."""
    if list_:
        sys.stdout.write("".join(f"{name}\n" for name in EXPERIMENTS))
        return
    names = _names(only, without)
    folder = out if out is not None else None if only or without or compare or update else _DOCS
    for each in (folder, update):
        if each is not None:
            _folder(each)
    for option, each in (("--compare", compare), ("--update", update)):
        if each is not None and not (each / pages.DOCUMENT).is_file():
            raise ConfigurationError(f"{option}: there is no {pages.DOCUMENT} in {each}")
    sections = {}
    for name, section in _sections(names, _find_traces(traces), seeds, processes):
        sections[name] = section
        if update is not None:
            pages.update(update, {name: section})
    if folder is not None:
        pages.write(folder, sections)
    failed = _verdict(sections)
    differing = [] if compare is None else pages.differing(compare, sections)
    for name in differing:
        sys.stdout.write(f"{name}: {compare}/{pages.DOCUMENT} shows another result\n")
    raise typer.Exit(1 if differing or (check and failed) else 0)


def _names(only: str, without: str) -> list[str]:
    """Return the experiments to run, in the order of the document.

    Raises ConfigurationError for an unknown one, or if none is left.
    """
    chosen, left_out = _parse_names(only), _parse_names(without)
    names = [name for name in EXPERIMENTS if (not chosen or name in chosen) and name not in left_out]
    if not names:
        raise ConfigurationError("--without leaves out every experiment that --only names")
    return names


def _find_traces(traces: Path | None) -> Path | None:
    """Return the folder of the traces; None without one. Raises ConfigurationError if the named one is not there."""
    if traces is not None and not traces.is_dir():
        raise ConfigurationError(f"--traces: there is no folder {traces}")
    folder = traces or _TRACES
    return folder if folder.is_dir() else None


def _parse_names(names: str) -> set[str]:
    listed = {name.strip() for name in names.split(",") if name.strip()}
    for name in sorted(listed):
        if name not in EXPERIMENTS:
            raise ConfigurationError(f"unknown experiment {name[:80]!r}; there are {', '.join(EXPERIMENTS)}")
    return listed


def _folder(folder: Path) -> None:
    """Check that the document can be written, before the experiments run."""
    check_installed()
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder} is no folder")
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".headgate-reproduce"
    probe.touch()
    probe.unlink()


def _sections(
    names: list[str], traces: Path | None, seeds: int, processes: int | None
) -> Iterator[tuple[str, Section]]:
    """Run the experiments, and yield each when it is done: an interrupted `--update` keeps what it has."""
    with Processes(processes) as pool:
        for number, name in enumerate(names, 1):
            with progress(f"{name} ({number} of {len(names)})") as shown:
                pool.on_done = shown
                section = EXPERIMENTS[name](Setting(pool.map, traces, seeds))
            yield name, section


def _verdict(sections: dict[str, Section]) -> int:
    """Print each claim with its verdict. Return the number of claims that fail without a known reason."""
    console = Console(highlight=False, soft_wrap=True)
    for name, section in sections.items():
        console.print(f"[bold]{name}[/]: {escape(section.title)}")
        if section.skipped is not None:
            console.print(f"  – skipped: {escape(section.skipped)}")
        for check in section.checks:
            console.print(f"  {_MARKS[check.held]} {escape(check.claim)}: {escape(check.found)}")
    held = Counter(check.held for section in sections.values() for check in section.checks)
    skipped = sum(section.skipped is not None for section in sections.values())
    console.print(
        f"{held[True]} claims hold, {held[False]} do not, {held[None]} are reported without a verdict; "
        f"{skipped} of {len(sections)} experiments were skipped."
    )
    return sum(check.is_unexplained for section in sections.values() for check in section.checks)
